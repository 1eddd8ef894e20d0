"""Spans for a collector that may be down or slow, and the settings of its address."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from chaski import __version__
from chaski.env import Environment, without_secrets
from chaski.errors import OptionError
from chaski.server.app import create_app
from chaski.server.command import command
from chaski.server.settings import Settings
from chaski.server.telemetry.otlp import open_export, traces_endpoint
from chaski.store.store import Store
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until
from tests.server.test_traces import CHAT

LOG = "chaski.server.telemetry.span_export"


@dataclass
class Collector:
    """Accepts spans over HTTP. status: its reply status. hold: no answer before it is set."""

    status: int = 200
    hold: threading.Event | None = None
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    url: str = ""

    @property
    def names(self) -> list[str]:
        """Return the names of all spans."""
        return [
            span.name
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if collector.hold is not None:
                collector.hold.wait(10)
            if collector.status == 200:
                collector.paths.append(self.path)
                collector.headers.append(dict(self.headers))
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    yield collector
    server.shutdown()
    server.server_close()


@contextmanager
def sending(models: Path, **environment: Any) -> Iterator[Running]:
    settings = Settings.of(Environment(host="127.0.0.1:0", **environment))
    with running(settings, models, Script().open) as server:
        yield server


def test_a_collector_gets_spans(collector: Collector, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer theirs")
    with sending(models, otlp_endpoint=collector.url + "/") as server:
        assert server.post("/api/chat", CHAT).status == 200
    # They were sent at the end, before the usual five seconds.
    assert collector.paths == ["/v1/traces"]
    assert collector.headers[0]["authorization"] == "Bearer theirs"
    assert sorted(collector.names) == [
        *("POST /api/chat", "chat helper:latest", "decode", "load", "prefill", "queue"),
    ]
    (resource,) = collector.requests[0].resource_spans
    told = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert told["service.name"] == "chaski"
    assert told["service.version"] == __version__
    (scope,) = resource.scope_spans
    request = next(span for span in scope.spans if span.name == "POST /api/chat")
    job = next(span for span in scope.spans if span.name == "chat helper:latest")
    assert job.parent_span_id == request.span_id
    tokens = {each.key: each.value.int_value for each in job.attributes}
    assert tokens["gen_ai.usage.output_tokens"] == 1
    assert b"a secret" not in collector.requests[0].SerializeToString()


def test_the_environment_names_the_server(
    collector: Collector, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    with sending(models, otlp_traces_endpoint=collector.url + "/here") as server:
        server.get("/api/version")
        wait_until(lambda: collector.names == ["GET /api/version"])
    assert collector.paths == ["/here"]
    attributes = collector.requests[0].resource_spans[0].resource.attributes
    assert {each.key: each.value.string_value for each in attributes}["service.name"] == "ours"


def test_a_collector_that_is_down_costs_no_answer(
    models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.05")
    with (
        caplog.at_level(logging.WARNING),
        sending(models, otlp_endpoint=f"http://127.0.0.1:{port}") as server,
    ):
        for _ in range(5):
            assert server.post("/api/chat", CHAT).status == 200
            time.sleep(0.02)
        wait_until(lambda: caplog.records)
    (line,) = [record.getMessage() for record in caplog.records if record.name == LOG]
    assert line.startswith("spans may be lost: ")
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_collector_that_refuses_is_named_in_the_log(
    collector: Collector, models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    collector.status = 404
    with caplog.at_level(logging.WARNING, LOG), sending(models, otlp_endpoint=collector.url) as server:
        server.get("/api/version")
        wait_until(lambda: caplog.records)
    assert "404" in caplog.records[0].getMessage()


def test_a_collector_that_hangs_delays_neither_answers_nor_the_end(
    collector: Collector, models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr(f"{LOG}._PATIENCE", 0.2)
    collector.hold = threading.Event()
    with caplog.at_level(logging.WARNING, LOG), sending(models, otlp_endpoint=collector.url) as server:
        began = time.monotonic()
        for _ in range(20):
            assert server.get("/api/version").status == 200
        assert time.monotonic() - began < 5
        ending = time.monotonic()
    assert time.monotonic() - ending < 5
    collector.hold.set()
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "spans may be lost: Queue full, dropping Span."
    assert told[-1] == "the last spans are lost, since the collector does not answer"


def test_where_spans_are_sent() -> None:
    assert traces_endpoint(Environment()) is None
    base = {"otlp_endpoint": "http://here:4318"}
    assert traces_endpoint(Environment(**base)) == "http://here:4318/v1/traces"
    both = {**base, "otlp_traces_endpoint": "https://there/spans?a=b"}
    assert traces_endpoint(Environment(**both)) == "https://there/spans?a=b"
    assert traces_endpoint(Environment(**base, otlp_protocol="http/protobuf")) is not None
    assert traces_endpoint(Environment(**base, otel_traces_exporter="none")) is None
    assert traces_endpoint(Environment(**base, is_otel_disabled=True, otlp_protocol="grpc")) is None
    assert traces_endpoint(Environment(otlp_protocol="grpc")) is None
    specific = {"otlp_traces_protocol": "http/protobuf", "otlp_protocol": "grpc"}
    assert traces_endpoint(Environment(**base, **specific)) is not None


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"otlp_protocol": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, but only http/protobuf is supported",
        ),
        ({"otlp_traces_protocol": "http/json"}, "is http/json, but only"),
        ({"otel_traces_exporter": "console"}, "OTEL_TRACES_EXPORTER is console"),
        ({"otlp_traces_endpoint": "here:4317"}, "spans cannot be sent to here:4317: use a URL such as http"),
        ({"otlp_traces_endpoint": "http://"}, "spans cannot be sent to"),
        ({"otlp_traces_endpoint": "http://a:b"}, "spans cannot be sent to"),
    ],
)
def test_settings_that_are_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Settings.of(Environment(**{"otlp_endpoint": "http://here:4318", **environment}))


def test_a_queue_that_is_too_small_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1")
    with pytest.raises(
        OptionError, match="spans cannot be sent with the settings of the environment: max_export"
    ):
        open_export("http://here:4318")


def test_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Settings] = []
    monkeypatch.setattr("chaski.server.run.serve", lambda settings, *more: found.append(settings))
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    url = "http://here:4318/v1/traces"
    assert CliRunner().invoke(command, ["--otlp-traces-endpoint", url]).exit_code == 0
    assert CliRunner().invoke(command).exit_code == 0
    assert [settings.traces for settings in found] == [url, None]


def test_workers_do_not_get_the_headers() -> None:
    names = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS")
    assert without_secrets(dict.fromkeys(names, "authorization=theirs")) == {}


def test_without_a_url_there_is_nothing(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.server.app.open_export", lambda endpoint: pytest.fail("not wanted"))
    create_app(Settings(address=SOMEWHERE), Store(models), Script().open)
