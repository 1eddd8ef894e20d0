"""Models: architectures, their metadata and weights, and the program that runs them on batches."""
