"""The ladder with a table for a policy: runs of seconds through the real hooks, and its phase diagrams."""
