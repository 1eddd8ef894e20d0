"""Jais 2 (Inception 2025), which computes what Nemotron 4 computes."""

from chaski.model.arch.nemotron import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture("jais2", "Jais 2")
