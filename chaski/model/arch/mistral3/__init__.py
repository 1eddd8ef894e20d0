"""Mistral Small 3 and Ministral 3 (Mistral AI 2025): a text model and Pixtral's image encoder."""

from chaski.model.arch.mistral3.text import Model

__all__ = ["Model"]
