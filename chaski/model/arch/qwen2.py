"""Qwen 2 and 2.5 (Yang et al. 2024): Llama with biases on query, key and value, and a neox rope."""

from __future__ import annotations

from chaski.model.arch import llama


class Model(llama.Model):
    neox = True
