"""Answers of H steps whose true credit is known: where token-level credit can be measured, not guessed."""

from tasks.ladder.options import LadderOptions
from tasks.ladder.task import LadderTask

__all__ = ["LadderOptions", "LadderTask"]
