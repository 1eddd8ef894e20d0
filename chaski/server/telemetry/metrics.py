"""`Metrics`: the metrics for Prometheus, under chaski's own names and those of vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from chaski.server.models.pool import ModelPool
from chaski.server.telemetry.gauges import Gauges
from chaski.server.telemetry.own_metrics import OwnMetrics
from chaski.server.telemetry.record import RequestRecord
from chaski.server.telemetry.vllm_metrics import VLLMMetrics, VLLMSeries

if TYPE_CHECKING:
    from chaski.server.models.loaded import LoadedModel

__all__ = ["Metrics"]

_MAX_NAMES = 256
_OTHERS = "(others)"
"""The name under which models beyond `_MAX_NAMES` are counted together."""


class Metrics:
    """Counters of this server, which contain neither clients nor texts. Use it in one event loop only.

    first_tokens: number of ended requests with an answer
    first_token_seconds: sum of their times from arrival to the first token

    A model has series only after a request for which it was loaded, so that invalid names never get any.
    """

    def __init__(self, models: ModelPool) -> None:
        from prometheus_client import CollectorRegistry

        self.first_tokens = 0
        self.first_token_seconds = 0.0
        self._registry = CollectorRegistry()
        self._own = OwnMetrics(self._registry)
        self._vllm = VLLMMetrics(self._registry)
        self._gauges = Gauges(models)
        self._series: dict[str, VLLMSeries] = {}
        self._registry.register(self._gauges)

    def advance(self, model: str, count: int, gap: float | None) -> None:
        """Count tokens of an answer that arrived together, `gap` seconds after the previous ones."""
        series = self._series[self._label(model)]
        series.generated(count)
        if gap is not None:
            series.gap(gap)

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        if record.loaded is None:
            return
        label = self._label(record.model)
        if record.done is not None:
            self._own.count_answer(label, record.done)
            if record.done.generated_tokens and record.first_token_seconds is not None:
                self.first_tokens += 1
                self.first_token_seconds += record.first_token_seconds
        elif record.ending is None and record.prompt_tokens:
            self._own.count_prompt(label, record.prompt_tokens, 0)
        self._vllm.count(label, record)

    def page(self, kv_usage: Mapping[LoadedModel, float]) -> tuple[bytes, str]:
        """Return the page for Prometheus and its media type. `kv_usage` is a result of `kv_cache_usage`."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        self._gauges.kv_usage = kv_usage
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _label(self, model: str) -> str:
        """Return the label of a model, and create its series if they do not exist yet."""
        if model not in self._series and len(self._series) >= _MAX_NAMES:
            model = _OTHERS
        if model not in self._series:
            self._series[model] = self._vllm.of(model)
        return model
