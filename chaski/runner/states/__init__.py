"""Saved states: what the cache holds of one sequence, in a file of its own."""
