"""Choosing a file of a model for this machine: what fits, how fast it is, and what its types lose."""
