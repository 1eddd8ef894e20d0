"""Charts of a model's memory use: by layer, and by context length."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import count, takewhile

from chaski.cli.charts import Bar, Chart
from chaski.cli.layout import size_in_bytes
from chaski.kvcache import CacheSize
from chaski.kvcache.build import cache_memory
from chaski.runner.loading.devices import reserve
from chaski.runner.loading.estimate import Estimate
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.parts import ModelParts, PartOptions, ReservedModel
from chaski.runner.loading.reservation import MemoryNeeds, kv_types

__all__ = ["memory_charts"]

_LAYER = re.compile(r"blk\.(\d+)\.")
_LEAST_CONTEXT = 512


def memory_charts(
    model: OpenedModel, context: int | None, parallel: int | None, backend: str | None
) -> Iterator[Chart]:
    """Yield two charts: weights and cache by layer, and total memory by context, up to the trained
    context."""
    parts = ModelParts.of(model, PartOptions(context=context, parallel=parallel))
    reserved = reserve(parts, backend)
    try:
        size, caches = reserved.size, _caches(parts, reserved)
    finally:
        reserved.close()
    yield _by_layer(parts, size, caches)
    yield _by_context(model, parts, size, backend)


def _by_layer(parts: ModelParts, size: CacheSize, caches: list[int]) -> Chart:
    outside = sum(tensor.nbytes for name, tensor in parts.file.tensors.items() if not _LAYER.match(name))
    weights: dict[int, int] = {}
    for name, tensor in parts.file.tensors.items():
        if layer := _LAYER.match(name):
            weights[int(layer[1])] = weights.get(int(layer[1]), 0) + tensor.nbytes
    # Some layers have no cache or share another layer's cache. Caches then do not map to layers one to one.
    is_each = len(caches) == len(weights)
    held = caches if is_each else [0] * len(weights)
    bars = [
        _bar(f"layer {number}", weights[number], cache)
        for number, cache in zip(sorted(weights), held, strict=True)
    ]
    bars.append(_bar("embeddings, output", outside, 0))
    if not is_each:
        bars.append(_bar("caches of layers", 0, sum(caches)))
    asked = f"{size.sequences} sequence(s) of {size.capacity:,} tokens"
    return Chart(f"Memory by layer, {asked}; weight sizes as in the file", bars, ("weights", "cache"))


def _caches(parts: ModelParts, reserved: ReservedModel) -> list[int]:
    """Return the cache size of each layer that has a cache, in bytes."""
    types = kv_types(parts.kv_type, reserved.backend, parts.file)
    return [
        sum(kind.num_bytes.values())
        for layer in parts.network.layer_kinds()
        for kind in cache_memory(reserved.backend, [layer], reserved.size, types)
    ]


def _by_context(model: OpenedModel, parts: ModelParts, size: CacheSize, backend: str | None) -> Chart:
    trained = parts.network.config.context_length
    powers = takewhile(lambda context: context < trained, (_LEAST_CONTEXT << n for n in count()))
    contexts = sorted({trained, size.capacity, *powers})
    estimates = [Estimate.of(model, context, size.sequences, backend) for context in contexts]
    bars = [_whole_bar(f"{each.size.capacity:,} tokens", each.needs) for each in estimates]
    available = size_in_bytes(sum(estimates[0].needs.available.values()))
    title = f"Memory by context, {size.sequences} sequence(s); {available} available"
    return Chart(title, bars, ("weights", "cache", "plans, drafts, adapters"))


def _whole_bar(label: str, needs: MemoryNeeds) -> Bar:
    weights = _sum(needs.weights) - _sum(needs.shared)
    cache = sum(_sum(kind.num_bytes) for kind in needs.caches)
    total = _sum(needs.total)
    fits = ", does not fit" if needs.missing else ""
    parts = (weights, cache, max(total - weights - cache, 0))
    return Bar(label, parts, size_in_bytes(sum(parts)) + fits)


def _bar(label: str, weights: int, cache: int) -> Bar:
    words = " + ".join(size_in_bytes(each) for each in (weights, cache) if each)
    return Bar(label, (weights, cache), words or "nothing")


def _sum(part: Mapping[str, int]) -> int:
    return sum(part.values())
