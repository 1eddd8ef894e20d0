"""Gemma 4 (Google 2026): a text model and image encoders."""

from chaski.model.arch.gemma4.text import Model

__all__ = ["Model"]
