"""`LiveService`: current figures of the server and its models, with rates over the last seconds.

The service asks workers only while a client watches, and once for all clients that watch at the same time.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from msgspec import to_builtins

from chaski.cluster.routed_model import RoutedModel
from chaski.errors import ChaskiError
from chaski.ml.machine import available_memory, total_memory
from chaski.runner.engine.live import LiveSequence, LiveSequences
from chaski.server.models.loaded import LoadedModel
from chaski.server.models.pool import ModelPool
from chaski.server.telemetry.metrics import Metrics

__all__ = ["LiveService"]

# Figures are reused for `_FRESH` seconds; rates cover at most `_OLD` seconds.
_FRESH, _OLD = 0.4, 5.0
# Seconds between two samples when there is no recent one, and seconds to wait for a worker.
_BETWEEN, _PATIENCE = 0.25, 1.0


class LiveService:
    """Service that samples the models and remembers the previous sample. Use it in one event loop only."""

    def __init__(self, models: ModelPool, metrics: Metrics) -> None:
        self._models = models
        self._metrics = metrics
        self._started = time.monotonic()
        self._looks: dict[LoadedModel, LiveSequences] = {}
        self._figures: dict[str, Any] = {}
        self._looked_at = -_OLD
        self._looking = asyncio.Lock()

    async def figures(self) -> dict[str, Any]:
        """Return the current figures as a JSON object."""
        async with self._looking:
            age = time.monotonic() - self._looked_at
            if age >= _OLD:
                await self._look()
                if self._models.loaded:
                    await asyncio.sleep(_BETWEEN)
            if age >= _FRESH:
                self._figures = await self._look()
                self._looked_at = time.monotonic()
            return self._figures

    async def _look(self) -> dict[str, Any]:
        loaded = await self._models.refreshed()
        before, self._looks = self._looks, {}
        found = await asyncio.gather(*map(_live, loaded))
        self._looks = {model: now for model, now in zip(loaded, found, strict=True) if now is not None}
        models = [_model(model, now, before.get(model)) for model, now in zip(loaded, found, strict=True)]
        return {"server": self._server(loaded), "models": models}

    def _server(self, loaded: list[LoadedModel]) -> dict[str, Any]:
        from chaski import __version__

        return {
            "version": __version__,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "memory_bytes": total_memory(),
            "available_bytes": available_memory(),
            "models_bytes": sum(model.info.memory.total for model in loaded),
            "waiting_for_load": self._models.waiting,
            "first_tokens": self._metrics.first_tokens,
            "first_token_seconds": round(self._metrics.first_token_seconds, 6),
        }


async def _live(model: LoadedModel) -> LiveSequences | None:
    """Return the live figures of a worker; None if it does not answer in time."""
    if model.worker.is_running:
        with suppress(ChaskiError, TimeoutError):
            return await asyncio.wait_for(model.model.live(), _PATIENCE)
    return None


def _model(model: LoadedModel, now: LiveSequences | None, before: LiveSequences | None) -> dict[str, Any]:
    memory = model.info.memory
    parts = {name: getattr(memory, name) for name in ("weights", "cache", "plans", "adapters")}
    shown: dict[str, Any] = {
        "name": model.name,
        "engine": model.info.engine,
        "parallel": model.parallel,
        "context_length": model.info.context,
        "memory": {**parts, "total": memory.total},
        "running": model.users - model.queue.waiting,
        "waiting": model.queue.waiting,
        "prefix_cache": [
            {
                "tier": use.tier,
                "blocks": use.num_blocks,
                "tokens": use.num_tokens,
                "bytes": use.num_bytes,
                "max_bytes": use.max_bytes,
            }
            for use in model.info.prefixes
        ],
        "experts": to_builtins(memory.experts),
    }
    if isinstance(model.worker, RoutedModel):
        shown["replicas"] = [to_builtins(replica) for replica in model.worker.replicas()]
        shown["waiting_for_replica"] = model.worker.num_waiting
    if now is None:
        return shown
    past = {each.number: each for each in before.sequences} if before is not None else {}
    seconds = now.seconds - before.seconds if before is not None else 0.0
    computed = generated = 0
    totals = now.totals
    if before is not None:
        computed = totals.computed - before.totals.computed
        generated = totals.generated - before.totals.generated
    return shown | {
        "prompt_tokens": totals.computed,
        "generated_tokens": totals.generated,
        "cached_tokens_by_tier": {"cells": totals.cells, "memory": totals.memory, "disk": totals.disk},
        "dropped_tokens": totals.dropped,
        "proposed_tokens": totals.proposed,
        "accepted_tokens": totals.accepted,
        "prompt_tokens_per_second": _rate(computed, seconds),
        "generated_tokens_per_second": _rate(generated, seconds),
        "num_sequences": now.num_sequences,
        "sequences": [_sequence(each, past.get(each.number), seconds) for each in now.sequences],
    }


def _sequence(now: LiveSequence, before: LiveSequence | None, seconds: float) -> dict[str, Any]:
    computed, generated = now.computed_tokens, now.generated_tokens
    if before is not None:
        computed, generated = computed - before.computed_tokens, generated - before.generated_tokens
    else:
        seconds = now.seconds
    return {
        "id": now.number,
        "slot": now.slot,
        "state": now.state,
        "prompt_tokens": now.prompt_tokens,
        "cached_tokens": now.cached_tokens,
        "computed_tokens": now.computed_tokens,
        "generated_tokens": now.generated_tokens,
        "dropped_tokens": now.dropped_tokens,
        "proposed_tokens": now.proposed_tokens,
        "accepted_tokens": now.accepted_tokens,
        "prompt_tokens_per_second": _rate(computed, seconds),
        "generated_tokens_per_second": _rate(generated, seconds),
        "seconds": round(now.seconds, 3),
        **({"replica": now.replica} if now.replica else {}),
    }


def _rate(count: int, seconds: float) -> float:
    """Return a rate per second. It is never negative, although a restart of a sequence lowers its counts."""
    return round(max(count, 0) / seconds, 1) if seconds > 0 else 0.0
