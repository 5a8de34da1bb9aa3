"""Errors meant for the person at the terminal: one line each, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can mend; the message names the field, the value and the fix."""


class RunFailed(Exception):
    """Runs ended without a result; the message says which and where their logs are."""
