"""LoRA adapters of a loaded model: which are there by name, which are in memory, and for whom."""
