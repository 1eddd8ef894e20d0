"""Finding out what a model needs before any of it is taken: weights, what its layers keep, and plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaski.errors import OutOfMemoryError
from chaski.formats.gguf import GGUFFile
from chaski.formats.quant import QuantType
from chaski.kvcache import Cache, CacheSize, KindMemory, KVTypes, build_cache, cache_memory
from chaski.ml import Backend
from chaski.ml.graph import DType
from chaski.model.program import Program
from chaski.model.registry import Model
from chaski.model.weights import place_weights

__all__ = ["Needs", "Reserved", "kv_types", "reserve"]

# Rows of logits in one batch: more make `logits` faster and cost vocab_size floats each.
_MIN_OUTPUTS = 16


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a model takes, and that are there for it."""

    weights: int
    caches: Sequence[KindMemory]
    plans: int
    available: int

    @property
    def total(self) -> int:
        return self.weights + sum(kind.num_bytes for kind in self.caches) + self.plans

    def check(self) -> None:
        """Raise OutOfMemoryError, with a table of what is needed, where that is too much."""
        if self.total <= self.available:
            return
        rows = [("weights", self.weights), *((str(kind), kind.num_bytes) for kind in self.caches)]
        table = "".join(f"\n  {num_bytes / 1e9:10.3f} GB  {what}" for what, num_bytes in [*rows, ("plans", self.plans)])
        raise OutOfMemoryError(
            f"the model needs {self.total / 1e9:.3f} GB, but {self.available / 1e9:.3f} GB of memory are "
            f"available; use a smaller context, fewer parallel sequences or a smaller model:{table}"
        )


@dataclass(frozen=True, slots=True)
class Reserved:
    """A model with a place for everything, ready to be loaded."""

    cache: Cache
    program: Program
    needs: Needs


def reserve(model: Model, file: GGUFFile, backend: Backend, size: CacheSize, types: KVTypes) -> Reserved:
    """Give weights, caches and the plan for the largest batch their places. Takes no memory for them yet.

    Raises OutOfMemoryError, with a table of what is needed.
    """
    place_weights(model, file, backend)
    layers = model.layer_kinds()
    caches = cache_memory(backend, layers, size, types)
    (available,) = (device.available_bytes for device in backend.devices())
    Needs(backend.memory().weights, caches, 0, available).check()
    cache = build_cache(backend, layers, size, types)
    max_outputs = max(size.sequences, _MIN_OUTPUTS) if model.config.pooling is None else size.max_batch
    program = Program(model, cache, backend, size.max_batch, max_outputs)
    needs = Needs(backend.memory().weights, caches, backend.memory().plans, available)
    needs.check()
    return Reserved(cache, program, needs)
