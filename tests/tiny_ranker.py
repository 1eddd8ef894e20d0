"""A tiny random model that ranks documents, with outputs for its labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.rewriting import all_tensors
from tests.tiny_llama import HIDDEN, write_tiny_llama

__all__ = ["LABELS", "TEMPLATE", "write_tiny_ranker"]

TEMPLATE = "<q>{query}<d>{document}<a>"
LABELS = np.random.default_rng(3).standard_normal((2, HIDDEN)).astype(np.float32) / 4


def write_tiny_ranker(path: Path, labels: np.ndarray = LABELS, template: str = TEMPLATE) -> Path:
    """Write a tiny Llama with outputs for its labels next to `path`."""
    write_tiny_llama(path, llama__pooling_type=4, tokenizer__chat_template__rerank=template)
    plain = open_gguf(path)
    tensors: dict[str, Any] = dict(all_tensors(plain))
    ranking = path.with_name(f"ranking-{path.name}")
    write_gguf(ranking, plain.metadata, tensors | {"cls.output.weight": (labels, QuantType.F32)})
    return ranking
