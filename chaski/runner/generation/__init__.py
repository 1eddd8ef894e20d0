"""Sequences that become text or vectors: sampling, stop strings, events."""
