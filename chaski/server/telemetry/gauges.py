"""`Gauges`: the current state of models, which is read when Prometheus requests the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from chaski.cluster.replicas import ReplicaState
from chaski.cluster.routed_model import RoutedModel
from chaski.errors import ChaskiError
from chaski.runner.channels.cache_picture import CacheKind, CachePicture
from chaski.server.models.loaded import LoadedModel
from chaski.server.models.pool import ModelPool
from chaski.server.telemetry.vllm_metrics import ENGINE, LABELS

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["Gauges", "kv_cache_usage"]

# Longest wait for a worker, in seconds.
_PATIENCE = 1.0


async def kv_cache_usage(models: Sequence[LoadedModel]) -> dict[LoadedModel, float]:
    """Return the share of cells that running requests use, from 0 to 1, for models that report it.

    If a model has several kinds of cells, the fullest kind counts. Cells that are only cached for later
    prompts count as free.
    """
    found = await asyncio.gather(*map(_usage, models))
    return {model: usage for model, usage in zip(models, found, strict=True) if usage is not None}


async def _usage(model: LoadedModel) -> float | None:
    if model.worker.is_running:
        with suppress(ChaskiError, TimeoutError):
            picture = await asyncio.wait_for(model.model.cache_picture(), _PATIENCE)
            return max((_used(kind, picture) for kind in picture.kinds if not kind.is_state), default=None)
    return None


def _used(kind: CacheKind, picture: CachePicture) -> float:
    is_used = np.zeros(kind.cells, bool)  # shared cells count once
    running = [number for number, slot in enumerate(picture.slots) if slot.is_running]
    is_used[kind.held_by(running)] = True
    return float(is_used.mean()) if kind.cells else 0.0


class Gauges:
    """Collector of gauges from a pool of models. `kv_usage` is the last result of `kv_cache_usage`."""

    def __init__(self, models: ModelPool) -> None:
        self._models = models
        self.kv_usage: Mapping[LoadedModel, float] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges."""
        yield from self._own()
        yield from self._of_experts()
        yield from self._of_nodes()
        yield from self._vllm()

    def _own(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "chaski_waiting_for_load", "Requests that wait for a model", value=self._models.waiting
        )
        label = ["model"]
        waiting = GaugeMetricFamily("chaski_waiting", "Requests that wait for a place", labels=label)
        running = GaugeMetricFamily("chaski_running", "Requests that have a place", labels=label)
        places = GaugeMetricFamily("chaski_places", "Sequences that are computed together", labels=label)
        memory = GaugeMetricFamily("chaski_memory_bytes", "Memory of a model", labels=label)
        by_device = GaugeMetricFamily(
            "chaski_device_memory_bytes", "Memory of a model on a device", labels=["model", "device"]
        )
        prefixes = {
            unit: GaugeMetricFamily(f"chaski_prefix_{unit}", meaning, labels=["model", "tier"])
            for unit, meaning in (
                ("blocks", "Blocks in a tier of the prefix cache"),
                ("tokens", "Tokens of the blocks in a tier of the prefix cache"),
                ("bytes", "Bytes of the blocks in a tier of the prefix cache"),
            )
        }
        for model in self._models.loaded:
            for use in model.info.prefixes:
                counts = {"blocks": use.num_blocks, "tokens": use.num_tokens, "bytes": use.num_bytes}
                for unit, count in counts.items():
                    prefixes[unit].add_metric([model.name, use.tier], count)
            held = model.info.memory
            waiting.add_metric([model.name], model.queue.waiting)
            running.add_metric([model.name], model.users - model.queue.waiting)
            places.add_metric([model.name], model.parallel)
            memory.add_metric([model.name], held.total)
            for part in held.devices:
                by_device.add_metric([model.name, part.device], part.total)
        yield from (waiting, running, places, memory, by_device, *prefixes.values())

    def _of_experts(self) -> Iterator[Metric]:
        """Yield what layers whose experts are in several places have requested and read."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["model", "layer"]
        requests = CounterMetricFamily(
            "chaski_expert_requests", "Matrices of experts that batches requested", labels=labels
        )
        hits = CounterMetricFamily("chaski_expert_hits", "Of these, matrices in memory", labels=labels)
        gpu_hits = CounterMetricFamily(
            "chaski_expert_gpu_hits", "Of these, matrices that a GPU computed instead", labels=labels
        )
        read = CounterMetricFamily(
            "chaski_expert_read_bytes", "Bytes of experts that were read from the file", labels=labels
        )
        slots = GaugeMetricFamily(
            "chaski_expert_slots", "Matrices of experts for which memory has room", labels=labels
        )
        gpu_slots = GaugeMetricFamily(
            "chaski_expert_gpu_slots", "Matrices of experts for which a GPU has room", labels=labels
        )
        for model in self._models.loaded:
            for layer in model.info.memory.experts:
                label = [model.name, str(layer.layer)]
                requests.add_metric(label, layer.requests)
                hits.add_metric(label, layer.hits)
                read.add_metric(label, layer.bytes_read)
                slots.add_metric(label, layer.slots)
                gpu_hits.add_metric(label, layer.gpu_hits)
                gpu_slots.add_metric(label, layer.gpu_slots)
        yield from (requests, hits, gpu_hits, read, slots, gpu_slots)

    def _of_nodes(self) -> Iterator[Metric]:
        """Yield the series of models that have replicas, by node and by replica."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        routed = [
            (model.name, model.worker)
            for model in self._models.loaded
            if isinstance(model.worker, RoutedModel)
        ]
        if not routed:
            return
        labels = ["model", "node"]
        replicas = GaugeMetricFamily("chaski_node_replicas", "Replicas of a model on a node", labels=labels)
        places = GaugeMetricFamily("chaski_node_places", "Places of these replicas", labels=labels)
        running = GaugeMetricFamily(
            "chaski_node_running", "Requests that these replicas answer", labels=labels
        )
        labels = ["model", "node", "replica"]
        replica_places = GaugeMetricFamily("chaski_replica_places", "Places of a replica", labels=labels)
        replica_running = GaugeMetricFamily(
            "chaski_replica_running", "Requests that a replica answers", labels=labels
        )
        label = ["model"]
        waiting = GaugeMetricFamily(
            "chaski_replica_waiting", "Requests that wait for a replica of a model", labels=label
        )
        resumed = CounterMetricFamily(
            "chaski_resumed", "Times that an answer continued after the loss of its replica", labels=label
        )
        suspected = CounterMetricFamily(
            "chaski_suspected", "Requests that ended because replicas died while they answered", labels=label
        )
        for name, model in routed:
            waiting.add_metric([name], model.num_waiting)
            resumed.add_metric([name], model.losses.resumed)
            suspected.add_metric([name], model.losses.suspected)
            by_node: dict[str, list[ReplicaState]] = {}
            for state in model.replicas():
                by_node.setdefault(state.node, []).append(state)
                replica_places.add_metric([name, state.node, state.name], state.places)
                replica_running.add_metric([name, state.node, state.name], state.answers)
            for node, states in by_node.items():
                replicas.add_metric([name, node], len(states))
                places.add_metric([name, node], sum(state.places for state in states))
                running.add_metric([name, node], sum(state.answers for state in states))
        yield from (replicas, places, running, replica_places, replica_running)
        yield from (waiting, resumed, suspected)

    def _vllm(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        running = GaugeMetricFamily(
            "vllm:num_requests_running", "Requests that are being computed", labels=LABELS
        )
        waiting = GaugeMetricFamily("vllm:num_requests_waiting", "Requests that wait", labels=LABELS)
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc",
            "Share of the cache that running requests use",
            labels=LABELS,
        )
        for model in self._models.loaded:
            label = [model.name, ENGINE]
            # A few of these requests wait in the worker, so that no place stays empty.
            num_running = min(model.users - model.queue.waiting, model.parallel)
            running.add_metric(label, num_running)
            waiting.add_metric(label, model.users - num_running)
            if model in self.kv_usage:
                usage.add_metric(label, self.kv_usage[model])
        yield from (running, waiting, usage)
