"""LoRA adapters of a loaded model: their names, their memory, and the requests that use them."""
