"""Gemma 3n's image encoder: MobileNet V5 (Google 2025), with the blocks of MobileNet V4 (Qin et al. 2024)."""

from chaski.model.projectors.mobilenet.vision import Vision

__all__ = ["Vision"]
