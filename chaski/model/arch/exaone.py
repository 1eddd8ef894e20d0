"""EXAONE 3 and 3.5 (LG AI Research 2024), which compute what Qwen 2 computes."""

from chaski.model.arch.qwen2 import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("exaone", "EXAONE 3 and 3.5")
