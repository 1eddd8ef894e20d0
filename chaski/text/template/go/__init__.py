"""Ollama's templates: an interpreter of Go's `text/template`, and the data that Ollama gives it."""

from __future__ import annotations

from chaski.text.template.go.template import GoTemplate

__all__ = ["GoTemplate"]
