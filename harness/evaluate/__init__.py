"""Evaluation of checkpoints and answers."""
