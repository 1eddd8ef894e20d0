"""A model on caches of a test's own, whose batches a test makes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from chaski.formats.gguf import open_gguf
from chaski.kvcache import CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.ml import CPUOptions, open_backend
from chaski.ml.graph import DType
from chaski.model.program import Program
from chaski.model.registry import build_model
from chaski.model.weights import bind_weights
from tests.backends import USUAL
from tests.vision_oracle import F32

__all__ = ["Runs"]


class Runs:
    """A model whose batches contain tokens of several sequences."""

    def __init__(self, path: Path, backend: str = USUAL, kv_type: DType = DType.F16) -> None:
        file = open_gguf(path)
        model = build_model(file)
        model.context = 128
        opened = open_backend(backend, CPUOptions(threads=1, variants=os.environ["CHASKI_VARIANTS"]))
        bind_weights(model, file, opened, lambda _: None)
        types = KVTypes(kv_type, kv_type)
        self.cache = build_cache(opened, model.layer_kinds(), CacheSize(3, 128, 128), types)
        self.program = Program(model, self.cache, opened, 128, 3)

    def forward(self, sequences: dict[int, list[int]]) -> dict[int, F32]:
        """Continue each sequence; return the logits of its last token."""
        ids, positions, rows, outputs = (list[int]() for _ in range(4))
        for sequence, tokens in sequences.items():
            begin = self.cache.length(sequence)
            ids += tokens
            positions += range(begin, begin + len(tokens))
            rows += [sequence] * len(tokens)
            outputs.append(len(ids) - 1)
        arrays = (np.array(values, np.int32) for values in (ids, positions, rows, outputs))
        found = self.program.forward(Batch(*arrays)).copy()
        return dict(zip(sequences, found, strict=True))
