"""Quality of a model on a text: perplexity, and the divergence from another file of the same model."""
