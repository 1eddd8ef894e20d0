"""Gemma 3 (Gemma Team 2025): a text model and, in the larger sizes, a SigLIP image encoder."""

from chaski.model.arch.gemma3.text import Model

__all__ = ["Model"]
