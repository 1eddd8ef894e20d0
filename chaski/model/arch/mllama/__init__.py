"""Llama 3.2 Vision (Llama Team 2024): Llama whose every fifth layer looks at an image by cross-attention."""
