"""StarCoder (Li et al. 2023): GPT-2 with one key/value head for all queries."""

from chaski.model.arch.gpt2 import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("starcoder", "StarCoder, SantaCoder, GPTBigCode")
