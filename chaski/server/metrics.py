"""`Metrics`: counters and gauges in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from chaski.chat.events import Done

if TYPE_CHECKING:
    from prometheus_client import Metric

    from chaski.server.models.loaded import LoadedModel

__all__ = ["Metrics"]

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """Counters of this server. Nothing in them names a client or a text."""

    def __init__(self, loaded: Callable[[], list[LoadedModel]], waiting: Callable[[], int]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        self.registry = CollectorRegistry()

        def counter(name: str, meaning: str) -> Counter:
            return Counter(name, meaning, ("model",), registry=self.registry)

        def histogram(name: str, meaning: str) -> Histogram:
            return Histogram(name, meaning, ("model",), registry=self.registry, buckets=_SECONDS)

        self._prompt = counter("chaski_prompt_tokens", "Tokens of prompts")
        self._cached = counter("chaski_cached_tokens", "Tokens of prompts that were cached")
        self._restored = Counter(
            "chaski_restored_tokens",
            "Cached tokens of prompts that came back from memory or disk",
            ("model", "tier"),
            registry=self.registry,
        )
        self._hits = Counter(
            "chaski_prefix_hits",
            "Prompts that took a beginning from a tier of the prefix cache",
            ("model", "tier"),
            registry=self.registry,
        )
        self._saved = counter("chaski_saved_seconds", "Time that restored tokens would have taken to compute")
        self._generated = counter("chaski_generated_tokens", "Tokens of answers")
        self._answers = counter("chaski_answers", "Answers that came to their end")
        self._prefill = histogram("chaski_prefill_seconds", "Time until the first token")
        self._decode = histogram("chaski_decode_seconds", "Time after the first token")
        self.registry.register(_State(loaded, waiting))

    def count_prompt(self, model: str, tokens: int, cached: int) -> None:
        """Count a prompt."""
        self._prompt.labels(model).inc(tokens)
        self._cached.labels(model).inc(cached)

    def count_answer(self, model: str, done: Done) -> None:
        """Count an answer and its prompt."""
        self.count_prompt(model, done.prompt_tokens, done.cached_tokens)
        for tier, tokens in (("memory", done.memory_tokens), ("disk", done.disk_tokens)):
            self._restored.labels(model, tier).inc(tokens)
        for tier, tokens in done.cached_by_tier.items():
            self._hits.labels(model, tier).inc(tokens > 0)
        self._saved.labels(model).inc(done.saved_seconds)
        self._generated.labels(model).inc(done.generated_tokens)
        self._answers.labels(model).inc()
        self._prefill.labels(model).observe(done.prefill_seconds)
        self._decode.labels(model).observe(done.decode_seconds)

    def page(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _State:
    """Gauges, which are read when the page is requested."""

    def __init__(self, loaded: Callable[[], list[LoadedModel]], waiting: Callable[[], int]) -> None:
        self._loaded = loaded
        self._waiting = waiting

    def collect(self) -> Iterator[Metric]:
        """The gauges."""
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "chaski_waiting_for_load", "Requests that wait for a model", value=self._waiting()
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
        for model in self._loaded():
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
