"""The engine, which computes batches of all running sequences: scheduling, isolation of faults, and
interrupts.
"""
