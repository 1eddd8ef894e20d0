"""Model file formats: reads and writes files, strictly. Knows nothing of tensors that compute."""
