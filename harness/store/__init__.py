"""Run directories and tables of records."""
