"""Refact (Small Magellanic Cloud AI 2023): Llama with ALiBi and one key/value head."""

from __future__ import annotations

from chaski.model.arch import baichuan
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("refact", "Refact 1.6B")


class Model(baichuan.Model):
    @property
    def has_rope(self) -> bool:
        return False
