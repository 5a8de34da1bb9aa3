"""Intervals, time to threshold, comparisons, power; numpy and scipy only."""
