"""Judges by name."""

from __future__ import annotations

import difflib
from dataclasses import fields
from typing import Any

from tasks.judges.base import Judge, JudgeError
from tasks.judges.scripted import ScriptedJudge

JUDGES = ("scripted", "openai", "anthropic")


def make_judge(name: str, **options: Any) -> Judge:
    """The judge called `name`; JudgeError for unknown names and options.

    Options of `openai` and `anthropic`: see ApiOptions; `model` and `budget_usd` are needed. Options of
    `scripted`: see ScriptedJudge.
    """
    if name == "scripted":
        return ScriptedJudge(**options)
    if name not in JUDGES:
        near = difflib.get_close_matches(name, JUDGES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise JudgeError(f"judge={name!r} is unknown: {hint}known: {', '.join(JUDGES)}")
    from tasks.judges.api import ApiOptions

    known = {item.name for item in fields(ApiOptions)}
    for option in options:
        if option not in known:
            raise JudgeError(f"judge.{option} is unknown: known options: {', '.join(sorted(known))}")
    for needed in ("model", "budget_usd"):
        if needed not in options:
            raise JudgeError(f"judge.{needed} is not set: the judge {name!r} needs it")
    if name == "openai":
        from tasks.judges.openai_judge import OpenAIJudge

        return OpenAIJudge(ApiOptions(**options))
    from tasks.judges.anthropic_judge import AnthropicJudge

    return AnthropicJudge(ApiOptions(**options))
