"""Jina Embeddings 3 (Sturua et al. 2024): XLM-R with rope instead of position embeddings."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.model.arch.bert import TextEncoder
from chaski.model.architecture import GELU, Architecture

ARCHITECTURE = Architecture(
    "jina-bert-v3",
    "Jina Embeddings 3",
    notes="`chaski convert --task` merges a task adapter; llama.cpp's files keep adapters separate.",
    fixed={"hidden_activation": GELU},
)


class Model(TextEncoder):
    def __init__(self, file: GGUFFile) -> None:
        super().__init__(file)
        self.rope = self.config.rope.rope(neox=True)
