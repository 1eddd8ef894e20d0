"""The models that requests name: which there are, which are loaded, who waits for them."""
