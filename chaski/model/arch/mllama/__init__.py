"""Llama 3.2 Vision (Llama Team 2024): Llama in which every fifth layer cross-attends to an image."""
