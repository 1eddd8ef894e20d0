"""`Estimate`: the memory that loading a model would take, worked out without taking it.

As a program, `python -m chaski.runner.loading.estimate`, it reads a question from standard input and writes
its answer as JSON: the server asks in a separate process, since the files of models come from strangers.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from msgspec import Struct

from chaski.env import Environment
from chaski.errors import ChaskiError
from chaski.kvcache import CacheSize, KindMemory
from chaski.ml import usual_gpus
from chaski.ml.backend import HOST, ByDevice, GPUOptions, summed
from chaski.ml.machine import available_memory
from chaski.names import ModelName
from chaski.runner.fitting.work import Work
from chaski.runner.loading.devices import reserve
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.parts import ModelParts, PartOptions
from chaski.runner.loading.prefix import memory_limit
from chaski.runner.loading.reservation import MemoryNeeds
from chaski.runner.loading.sizes import SizeWishes
from chaski.store.model import StoredModel, read_model
from chaski.store.store import Store

__all__ = ["Estimate"]


class Estimate(Struct, frozen=True):
    """The memory of a model at one size.

    work: what it reads and multiplies for a batch.
    place: its place on GPUs; None on the processor.
    trained: the longest context that it was made for.
    prefix_cache: bytes that blocks of its prefix cache may take later on the host.
    context_reason: why the context has its length, in words; empty for the usual one.
    """

    size: CacheSize
    needs: MemoryNeeds
    work: Work
    place: GPUOptions | None
    trained: int
    prefix_cache: int
    context_reason: str = ""

    @classmethod
    def of(
        cls,
        model: OpenedModel,
        context: int | None = None,
        parallel: int | None = None,
        backend: str | None = None,
        most_parallel: int = 1,
        claimed: int = 0,
        kv_type: str | None = None,
    ) -> Self:
        """Work it out for `parallel` sequences of `context` tokens; None is for the defaults of loading.

        most_parallel: number of sequences where memory suffices and `parallel` is None
        claimed: bytes of the host that count as unavailable

        Raises OptionError, UnsupportedError, GGUFError.
        """
        wishes = SizeWishes(most_parallel=most_parallel, claimed_memory=claimed)
        asked = PartOptions(context=context, parallel=parallel, wishes=wishes, kv_type=kv_type)
        return cls.of_parts(ModelParts.of(model, asked), backend, model.found.adapters)

    @classmethod
    def of_parts(cls, parts: ModelParts, backend: str | None = None, adapters: Sequence[Path] = ()) -> Self:
        """Work it out for a model whose parts are known. Raises as `of` does."""
        reserved = reserve(parts, backend)
        try:
            needs = reserved.needs_with(adapters)
            work = Work.of(parts.file, parts.network, reserved.types)
        finally:
            reserved.close()
        left = needs.available[HOST] - needs.total.get(HOST, 0)
        is_cached = parts.network.config.pooling is None
        limit = memory_limit(Environment.read(), left) if is_cached else 0
        return cls(
            reserved.size, needs, work, reserved.place, parts.max_context, limit, reserved.context_reason
        )

    def fits(self, freeable: int = 0) -> bool:
        """Return whether all devices have enough, with that many more bytes of the host's memory."""
        more = {HOST: freeable}
        return all(
            self.needs.total[name] <= self.needs.available[name] + more.get(name, 0)
            for name in self.needs.missing
        )


def describe(
    model: OpenedModel, context: int | None, parallel: int | None, most_parallel: int, freeable: int
) -> dict[str, Any]:
    """Return the estimate as the server's answer, with smaller sizes that fit if this one does not."""
    estimate = Estimate.of(model, context, parallel, most_parallel=most_parallel)
    needs, size = estimate.needs, estimate.size
    fits = estimate.fits(freeable)
    shown: dict[str, Any] = {
        "num_ctx": size.capacity,
        "context_reason": estimate.context_reason,
        "parallel": size.sequences,
        "fits": fits,
        "unloads": fits and not estimate.fits(),
        "devices": {name: _device(needs, name) for name in needs.total},
        "caches": [_kind(kind) for kind in needs.caches],
        "prefix_cache": estimate.prefix_cache,
        "freeable": freeable,
    }
    if not fits:
        shown["fitting"] = _fitting(model, size, freeable)
    return shown


def available() -> dict[str, int]:
    """Return the free bytes of each device that models are computed on unless the user chooses another."""
    return {HOST: available_memory()} | {gpu.name: gpu.available_bytes for gpu in usual_gpus()}


def _kind(kind: KindMemory) -> dict[str, Any]:
    held = sum(kind.num_bytes.values())
    return {"kind": kind.kind, "layers": kind.layers, "cells": kind.cells, "bytes": held}


def _device(needs: MemoryNeeds, name: str) -> Mapping[str, int]:
    """The bytes of each part on a device, those that are needed there in all, and those available."""
    parts: Mapping[str, ByDevice] = {
        "weights": needs.weights,
        "shared": needs.shared,
        "in_files": needs.in_files,
        "caches": summed([kind.num_bytes for kind in needs.caches]),
        "plans": summed([needs.plans or {}, needs.adapted]),
        "draft": needs.draft,
        "adapters": needs.adapters,
        "needed": needs.total,
        "available": needs.available,
    }
    return {part: num_bytes.get(name, 0) for part, num_bytes in parts.items()}


def _fitting(model: OpenedModel, size: CacheSize, freeable: int) -> dict[str, int]:
    """Halve the context, and apart from it the sequences, until the model fits; 0 where it never does."""
    context, parallel = size.capacity // 2, size.sequences // 2
    while context and not Estimate.of(model, context, size.sequences).fits(freeable):
        context //= 2
    while parallel and not Estimate.of(model, size.capacity, parallel).fits(freeable):
        parallel //= 2
    return {"num_ctx": context, "parallel": parallel}


def _stored(root: str, name: str) -> StoredModel:
    store = Store(Path(root))
    return read_model(store, store.entry(ModelName.parse(name)))


def main() -> None:
    """Answer one question: `store`, `model`, sizes, and `freeable` bytes of the host.

    An empty question asks for the free bytes of each device.
    """
    logging.disable(logging.WARNING)
    asked = json.load(sys.stdin)
    answer: dict[str, Any]
    try:
        if not asked:
            json.dump(available(), sys.stdout)
            return
        model = OpenedModel.of(_stored(asked["store"], asked["model"]))
        sizes = asked["num_ctx"], asked["parallel"], asked["most_parallel"]
        answer = describe(model, *sizes, asked["freeable"])
    except ChaskiError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
