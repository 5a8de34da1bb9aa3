"""Judges: rubric scores of an answer, scores of its steps, preferences between two screenshots."""

from tasks.judges.base import (
    Comment,
    Judge,
    Judgement,
    PairRequest,
    Preference,
    RubricItem,
    RubricRequest,
    StepJudgement,
    StepRequest,
    Usage,
)
from tasks.judges.make import JUDGES, make_judge

__all__ = [
    "JUDGES",
    "Comment",
    "Judge",
    "Judgement",
    "PairRequest",
    "Preference",
    "RubricItem",
    "RubricRequest",
    "StepJudgement",
    "StepRequest",
    "Usage",
    "make_judge",
]
