"""The shared training loop and what it needs."""
