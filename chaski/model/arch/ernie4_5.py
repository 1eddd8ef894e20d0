"""ERNIE 4.5, dense (Baidu 2025), which computes what Llama computes."""

from chaski.model.arch.llama import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("ernie4_5", "ERNIE 4.5 0.3B")
