"""Files of batches, and the batches that the server answers by itself."""
