"""XVERSE (XVERSE Technology 2023), which computes what Llama computes."""

from chaski.model.arch.llama import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("xverse", "XVERSE 7B, 13B and 65B")
