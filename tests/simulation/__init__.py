"""Simulated worlds: the real server, store and workers, with threads, time and faults that a seed decides.

`python -m tests.simulation --seeds 0:1000` runs a thousand worlds. `docs/trust.md` describes them.
"""
