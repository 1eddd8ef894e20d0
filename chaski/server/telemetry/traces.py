"""`Traces`: make spans of ended requests from their records. Imported only if spans are to be sent.

Each HTTP request is a span. Below it there is a span for each job of a model, and below that one for each
phase with known times. Attributes have the names of OpenTelemetry's conventions for HTTP and for generative
models, and latencies have those of vLLM. Attributes contain no text of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from time import perf_counter_ns, time_ns
from typing import TypeAlias

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from chaski.chat.events import Attempt
from chaski.server.telemetry.exchange import CLIENT_LEFT, Exchange
from chaski.server.telemetry.record import RequestRecord

__all__ = ["Traces"]

_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"}
_MAX_TEXT = 200
_MAX_METHOD = 16
_MAX_STATE = 512
_PROPAGATOR = TraceContextTextMapPropagator()

Attributes: TypeAlias = Mapping[str, str | int | float | bool | tuple[str, ...]]


class Traces:
    """A listener of `Exchanges`. Use it in one event loop only."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def __call__(self, scope: Scope, exchange: Exchange) -> None:
        clock = _Clock()
        attributes = _of_request(scope, exchange)
        method = attributes["http.request.method"]
        name = "HTTP" if method == "_OTHER" else f"{method}"
        if "http.route" in attributes:
            name = f"{name} {attributes['http.route']}"
        span = self._tracer.start_span(
            name, _parent(scope), SpanKind.SERVER, attributes, start_time=clock.at(exchange.started)
        )
        if not span.is_recording():
            return
        # A stream that fails has already sent the status of a success.
        if exchange.status >= 500 or (exchange.error is not None and exchange.status < 400):
            span.set_status(Status(StatusCode.ERROR))
        context = set_span_in_context(span, Context())
        for record in exchange.records:
            if record.is_over:
                self._job(context, exchange.id, record)
        exchange.late = partial(self._job, context, exchange.id)
        span.end(clock.at(exchange.ended))

    def _job(self, context: Context, request_id: str, record: RequestRecord) -> None:
        """Make the spans of a job of a model."""
        clock = _Clock()
        model = record.model[:_MAX_TEXT]
        assert record.ended is not None
        span = self._tracer.start_span(
            f"{record.operation} {model}",
            context,
            SpanKind.INTERNAL,
            {"gen_ai.request.model": model, "gen_ai.request.id": request_id, **_of_job(record)},
            start_time=clock.at(record.arrived),
        )
        if record.ending == "error":
            span.set_status(Status(StatusCode.ERROR))
        below = set_span_in_context(span, Context())
        for name, begin, end in _phases(record, record.ended):
            phase = self._tracer.start_span(name, below, start_time=clock.at(begin))
            phase.end(clock.at(end))
        for number, attempt in enumerate(record.attempts):
            self._attempt(below, clock, number, attempt)
        span.end(clock.at(record.ended))

    def _attempt(self, context: Context, clock: _Clock, number: int, attempt: Attempt) -> None:
        """Make the span of a stay at a replica; all but the last one failed."""
        attributes: Attributes = {
            "chaski.replica": attempt.replica,
            "chaski.node": attempt.node,
            "chaski.retry": number,
            **({} if attempt.error is None else {"error.type": attempt.error}),
        }
        span = self._tracer.start_span(
            "replica", context, SpanKind.CLIENT, attributes, start_time=clock.at(attempt.began)
        )
        if attempt.error is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(clock.at(attempt.ended))


class _Clock:
    """Conversion of seconds of `time.perf_counter` to time since the epoch, by their current difference."""

    def __init__(self) -> None:
        self._offset = time_ns() - perf_counter_ns()

    def at(self, seconds: float) -> int:
        """Return nanoseconds since the epoch."""
        return self._offset + int(seconds * 1e9)


def _parent(scope: Scope) -> Context:
    """Return the context of the client's span, which the header `traceparent` contains, or an empty one."""
    headers = Headers(scope=scope)
    parents = headers.getlist("traceparent")
    if len(parents) != 1 or len(parents[0]) > _MAX_STATE:
        return Context()
    carrier = {"traceparent": parents[0]}
    state = ",".join(headers.getlist("tracestate"))
    if 0 < len(state) <= _MAX_STATE:
        carrier["tracestate"] = state
    return _PROPAGATOR.extract(carrier, Context())


def _of_request(scope: Scope, exchange: Exchange) -> Attributes:
    method = scope["method"]
    client, route = scope.get("client"), scope.get("route")
    found: dict[str, str | int | bool | None] = {
        "http.request.method": method if method in _METHODS else "_OTHER",
        "http.request.method_original": None if method in _METHODS else method[:_MAX_METHOD],
        "url.scheme": scope.get("scheme", "http"),
        "url.path": scope["path"][:_MAX_TEXT],
        "http.route": None if route is None else route.path,
        "http.response.status_code": None if exchange.status == CLIENT_LEFT else exchange.status,
        "client.address": client[0] if client else None,
        "error.type": exchange.error,
        "chaski.request.id": exchange.id,
        "chaski.key": exchange.key,
        "chaski.cut_off": None if exchange.has_ended else True,
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_job(record: RequestRecord) -> Attributes:
    done = record.done
    found: dict[str, str | int | float | tuple[str, ...] | None] = {
        "gen_ai.operation.name": record.operation,
        "gen_ai.provider.name": "chaski",
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.usage.input_tokens": record.prompt_tokens or None,
        "gen_ai.usage.output_tokens": record.generated_tokens or None,
        "gen_ai.response.finish_reasons": None if record.ending is None else (record.ending,),
        "gen_ai.latency.e2e": record.total_seconds,
        "gen_ai.latency.time_to_first_token": None,
        "error.type": record.error,
    }
    if done is not None:
        found |= {
            "gen_ai.usage.input_tokens": done.prompt_tokens,
            "gen_ai.usage.output_tokens": done.generated_tokens,
            "gen_ai.usage.cache_read.input_tokens": done.cached_tokens,
            "gen_ai.latency.time_in_queue": record.queue_seconds,
            "gen_ai.latency.time_in_model_prefill": done.prefill_seconds,
            "gen_ai.latency.time_in_model_decode": done.decode_seconds,
            "gen_ai.latency.time_in_model_inference": done.prefill_seconds + done.decode_seconds,
        }
    if found["gen_ai.usage.output_tokens"]:
        found["gen_ai.latency.time_to_first_token"] = record.first_token_seconds
    return {name: value for name, value in found.items() if value is not None}


def _phases(record: RequestRecord, ended: float) -> Iterator[tuple[str, float, float]]:
    """Yield the name, begin and end of each known phase. For a failed job, not all phases are known."""
    if record.loaded is None:
        yield "load", record.arrived, ended
        return
    yield "load", record.arrived, record.loaded
    first, waited = record.first_token_at, record.queue_seconds
    if first is not None and waited is not None:
        began = record.loaded + waited
        yield "queue", record.loaded, began
        yield "prefill", began, max(began, first)
    if first is not None:
        yield "decode", first, ended
