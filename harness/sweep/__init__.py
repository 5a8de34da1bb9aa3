"""Grids of runs and the launchers that run them."""
