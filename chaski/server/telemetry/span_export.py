"""`SpanExport`: send spans to a collector in a separate thread. Imported only if spans are to be sent."""

from __future__ import annotations

import logging
from threading import Thread
from time import monotonic
from types import TracebackType
from typing import Self

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Tracer

from chaski import __version__

__all__ = ["SpanExport"]

_log = logging.getLogger(__name__)

_PATIENCE = 1.5  # seconds to wait for the last spans at the end
_GRACE = 0.5  # seconds to wait for the thread after it is told to give up
_PAUSE = 60.0  # seconds between two lines of the log


class SpanExport:
    """A context manager with a bounded queue of spans, and the thread that sends them.

    Spans are lost if the queue is full or if the collector does not accept them. The log reports this at most
    once a minute.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        ours = Resource({"service.name": "chaski", "service.version": __version__})
        named = ours.merge(OTELResourceDetector().detect())  # the environment takes precedence
        self._provider = TracerProvider(resource=Resource.create(named.attributes), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._news = _RareNews()

    @classmethod
    def to(cls, endpoint: str) -> Self:
        """Create an export to a URL. Raises ValueError if the environment makes the queue too small."""
        return cls(OTLPSpanExporter(endpoint=endpoint))

    @property
    def tracer(self) -> Tracer:
        """The tracer whose spans are sent."""
        return self._provider.get_tracer("chaski", __version__)

    def __enter__(self) -> Self:
        self._news.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        closing = Thread(target=self._provider.shutdown, name="chaski-last-spans", daemon=True)
        closing.start()
        closing.join(_PATIENCE)
        if closing.is_alive():
            _log.warning("the last spans are lost, since the collector does not answer")
            self._exporter.shutdown()
            closing.join(_GRACE)
        self._news.stop()


class _RareNews(logging.Handler):
    """Handler that passes on one line per minute of the SDK's log, which reports each failed batch."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logger = logging.getLogger("opentelemetry")
        self._next = 0.0

    def start(self) -> None:
        """Take over the SDK's log."""
        self._logger.addHandler(self)
        self._logger.propagate = False

    def stop(self) -> None:
        """Return the SDK's log to other handlers."""
        self._logger.removeHandler(self)
        self._logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        if (now := monotonic()) >= self._next:
            self._next = now + _PAUSE
            _log.warning("spans may be lost: %s", record.getMessage())
