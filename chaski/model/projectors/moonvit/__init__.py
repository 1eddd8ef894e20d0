"""MoonViT (Kimi Team 2025, arXiv 2504.07491): the encoder of Kimi's models, for images of any size."""
