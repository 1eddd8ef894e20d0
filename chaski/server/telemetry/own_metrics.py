"""`OwnMetrics`: counters and histograms of answers, with names that begin with chaski."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaski.chat.events import Done

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["OwnMetrics"]

_SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class OwnMetrics:
    """The metrics in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        def counter(name: str, meaning: str) -> Counter:
            return Counter(name, meaning, ("model",), registry=registry)

        def histogram(name: str, meaning: str) -> Histogram:
            return Histogram(name, meaning, ("model",), registry=registry, buckets=_SECONDS)

        self._prompt = counter("chaski_prompt_tokens", "Tokens of prompts")
        self._cached = counter("chaski_cached_tokens", "Tokens of prompts that were cached")
        self._restored = Counter(
            "chaski_restored_tokens",
            "Cached tokens of prompts that were restored from memory or disk",
            ("model", "tier"),
            registry=registry,
        )
        self._hits = Counter(
            "chaski_prefix_hits",
            "Prompts whose beginning came from a tier of the prefix cache",
            ("model", "tier"),
            registry=registry,
        )
        self._saved = counter(
            "chaski_saved_seconds", "Time that computing the restored tokens would have taken"
        )
        self._generated = counter("chaski_generated_tokens", "Tokens of answers")
        self._answers = counter("chaski_answers", "Completed answers")
        self._prefill = histogram("chaski_prefill_seconds", "Time until the first token")
        self._decode = histogram("chaski_decode_seconds", "Time after the first token")

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
