"""Gemma 4 (Google 2026), its text model."""

from chaski.model.arch.gemma4.text import Model

__all__ = ["Model"]
