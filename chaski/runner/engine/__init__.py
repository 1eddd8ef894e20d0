"""The engine computes batches of all sequences that run: scheduling, isolation of faults, and interrupts."""
