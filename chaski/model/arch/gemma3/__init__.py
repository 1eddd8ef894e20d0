"""Gemma 3 (Gemma Team 2025): a text model, and in its larger sizes SigLIP to see with."""

from chaski.model.arch.gemma3.text import Model

__all__ = ["Model"]
