"""The URL for spans of requests, as set in the environment, and the export that sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from chaski.env import Environment
from chaski.errors import OptionError, optional_package

if TYPE_CHECKING:
    from chaski.server.telemetry.span_export import SpanExport

__all__ = ["open_export", "traces_endpoint"]

_PROTOCOL = "http/protobuf"
_PATH = "/v1/traces"


def traces_endpoint(environment: Environment) -> str | None:
    """Return the URL to which spans are sent; None to send none. Raises OptionError."""
    base = environment.otlp_endpoint
    url = environment.otlp_traces_endpoint or (base and base.rstrip("/") + _PATH)
    exporter = environment.otel_traces_exporter
    if url is None or environment.is_otel_disabled or exporter == "none":
        return None
    if exporter not in (None, "otlp"):
        raise OptionError(f"OTEL_TRACES_EXPORTER is {exporter}; it must be otlp or none")
    protocol = environment.otlp_traces_protocol or environment.otlp_protocol
    if protocol not in (None, _PROTOCOL):
        raise OptionError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, but only {_PROTOCOL} is supported")
    if not _is_http(url):
        raise OptionError(f"spans cannot be sent to {url}: use a URL such as http://localhost:4318{_PATH}")
    return url


def open_export(endpoint: str) -> SpanExport:
    """Return an export of spans to a URL. Raises MissingPackageError, and OptionError for bad variables."""
    with optional_package("opentelemetry-exporter-otlp-proto-http", "tracing", "sending spans"):
        from chaski.server.telemetry.span_export import SpanExport
    try:
        return SpanExport.to(endpoint)
    except ValueError as error:  # from the SDK, for variables that begin with OTEL_BSP_
        raise OptionError(f"spans cannot be sent with the settings of the environment: {error}") from None


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
