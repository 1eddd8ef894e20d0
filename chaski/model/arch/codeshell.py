"""CodeShell (Xie et al. 2024), which computes what StarCoder 2 computes."""

from chaski.model.arch.starcoder2 import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("codeshell", "CodeShell 7B")
