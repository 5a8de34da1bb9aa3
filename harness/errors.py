"""Errors meant for the person at the terminal: one line each, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can mend; the message names the field, the value and the fix."""

    exit_code = 2


class EnvironmentProblem(UserError):
    """Something that this machine lacks or refuses; the message names the remedy."""

    exit_code = 1


class RunsFailed(UserError):
    """Runs ended without a result; the message says which and where their logs are."""

    exit_code = 4
