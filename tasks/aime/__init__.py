"""The AIME task: integer answers graded exactly, steps judged by exact arithmetic."""

from tasks.aime.task import AimeOptions, AimeTask

__all__ = ["AimeOptions", "AimeTask"]
