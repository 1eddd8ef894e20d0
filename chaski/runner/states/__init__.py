"""Saved states: what the cache holds of one sequence, in its own file."""
