"""EuroBERT (Boizard et al. 2025): Qwen 2 whose tokens all see each other, as its files state."""

from chaski.model.arch.qwen2 import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("eurobert", "EuroBERT, Jina Embeddings 5 nano")
