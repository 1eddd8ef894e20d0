"""PaddleOCR-VL, text (Cui et al. 2025, arXiv 2510.14528): ERNIE 4.5, rotated by three coordinates."""

from chaski.model.arch.qwen2vl import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("paddleocr", "PaddleOCR-VL", notes="A picture takes at most half of the context.")
