"""Published claims as declarative files, and their verdicts."""
