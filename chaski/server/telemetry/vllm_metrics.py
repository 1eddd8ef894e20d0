"""`VLLMMetrics`: counters and histograms under the names of vLLM, which many dashboards read.

Names, labels and buckets are those of vLLM's engine v1. Some of its metrics are not available here;
docs/observability.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

from msgspec import Struct

from chaski.server.telemetry.record import Ending, RequestRecord

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["ENGINE", "LABELS", "VLLMMetrics", "VLLMSeries"]

LABELS = ("model_name", "engine")
ENGINE = "0"
"""Number of a model's engine; here each model has only one."""

_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_BETWEEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
# In vLLM, these buckets end at the context length of its model. Here, models of all lengths share them.
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))


class VLLMSeries(Struct, frozen=True):
    """Counters of a running answer: its tokens, and the seconds between two of its pieces."""

    generated: Callable[[float], None]
    gap: Callable[[float], None]


class VLLMMetrics:
    """The metrics in a registry. Use it in one event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        def counter(name: str, meaning: str, *more: str) -> Counter:
            return Counter(f"vllm:{name}", meaning, (*LABELS, *more), registry=registry)

        def histogram(name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"vllm:{name}", meaning, LABELS, registry=registry, buckets=buckets)

        self._generated = counter("generation_tokens", "Tokens of answers")
        self._prompts = counter("prompt_tokens", "Tokens of prompts")
        self._queried = counter("prefix_cache_queries", "Tokens that were looked up in the prefix cache")
        self._hits = counter("prefix_cache_hits", "Tokens of prompts that were cached")
        self._success = counter("request_success", "Requests by the reason for their end", "finished_reason")
        self._drafted = counter("spec_decode_num_draft_tokens", "Tokens that were proposed")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Proposed tokens that were accepted")
        self._first = histogram("time_to_first_token_seconds", "Time until the first token", _FIRST)
        self._gap = histogram("inter_token_latency_seconds", "Time between pieces of an answer", _BETWEEN)
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time per token after the first", _BETWEEN
        )
        self._total = histogram("e2e_request_latency_seconds", "Time from arrival to end", _REQUEST)
        self._queue = histogram("request_queue_time_seconds", "Time spent waiting", _REQUEST)
        self._inference = histogram("request_inference_time_seconds", "Time spent computing", _REQUEST)
        self._prefill = histogram("request_prefill_time_seconds", "Time spent computing the prompt", _REQUEST)
        self._decode = histogram("request_decode_time_seconds", "Time after the first token", _REQUEST)
        self._prompt_size = histogram("request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self._computed = histogram(
            "request_prefill_kv_computed_tokens", "Tokens of a prompt that were not cached", _TOKENS
        )
        self._answer_size = histogram("request_generation_tokens", "Tokens of an answer", _TOKENS)
        self._limit = histogram(
            "request_params_max_tokens", "Limit of a request on the tokens of its answer", _TOKENS
        )

    def of(self, model: str) -> VLLMSeries:
        """Return the counters of a model's running answers, and set its counters of endings to 0."""
        for ending in get_args(Ending):
            self._success.labels(model, ENGINE, ending)
        return VLLMSeries(self._generated.labels(model, ENGINE).inc, self._gap.labels(model, ENGINE).observe)

    def count(self, model: str, record: RequestRecord) -> None:
        """Count a request that has ended."""
        label = model, ENGINE
        if record.ending is not None:
            self._success.labels(*label, record.ending).inc()
        done = record.done
        self._prompts.labels(*label).inc(record.prompt_tokens if done is None else done.prompt_tokens)
        if done is None:
            return
        # Tokens without text, such as the one that ends an answer, have not been counted yet.
        self._generated.labels(*label).inc(max(done.generated_tokens - record.generated_tokens, 0))
        self._queried.labels(*label).inc(done.prompt_tokens)
        self._hits.labels(*label).inc(done.cached_tokens)
        if done.proposed_tokens:
            self._drafted.labels(*label).inc(done.proposed_tokens)
            self._accepted.labels(*label).inc(done.accepted_tokens)
        self._prompt_size.labels(*label).observe(done.prompt_tokens)
        self._computed.labels(*label).observe(done.evaluated_tokens)
        self._answer_size.labels(*label).observe(done.generated_tokens)
        if record.max_tokens is not None:
            self._limit.labels(*label).observe(record.max_tokens)
        self._prefill.labels(*label).observe(done.prefill_seconds)
        self._decode.labels(*label).observe(done.decode_seconds)
        self._inference.labels(*label).observe(done.prefill_seconds + done.decode_seconds)
        if done.generated_tokens > 1:
            self._per_token.labels(*label).observe(done.decode_seconds / (done.generated_tokens - 1))
        for metric, seconds in (
            (self._total, record.total_seconds),
            (self._queue, record.queue_seconds),
            (self._first, record.first_token_seconds if done.generated_tokens else None),
        ):
            if seconds is not None:
                metric.labels(*label).observe(seconds)
