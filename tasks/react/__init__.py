"""The React task: components checked by the real TypeScript parser and esbuild."""

from tasks.react.task import ReactOptions, ReactTask

__all__ = ["ReactOptions", "ReactTask"]
