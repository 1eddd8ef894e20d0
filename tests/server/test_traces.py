"""Spans of requests: their content, data that they never contain, and their parents."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from chaski.chat.events import Attempt
from chaski.errors import OutOfMemoryError, WorkerError
from chaski.server.settings import Settings
from chaski.server.telemetry.span_export import SpanExport
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until

CHAT = {"model": "helper", "messages": [{"role": "user", "content": "a secret"}], "stream": False}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Spans:
    """The recorded spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()

    def wait(self, count: int) -> list[Any]:
        """Wait for this many spans, and return them in the order of their ends."""
        wait_until(lambda: len(self.exporter.get_finished_spans()) >= count)
        found: list[Any] = list(self.exporter.get_finished_spans())
        assert len(found) == count, [span.name for span in found]
        return found

    def named(self, *names: str) -> list[Any]:
        """Wait for as many spans as names, check the names, and return the spans by name."""
        found = self.wait(len(names))
        assert sorted(span.name for span in found) == sorted(names)
        return [next(span for span in found if span.name == name) for name in names]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Spans:
    spans = Spans()
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "5")
    monkeypatch.setattr("chaski.server.app.open_export", lambda endpoint: SpanExport(spans.exporter))
    return spans


@contextmanager
def traced(models: Path, script: Script, **settings: Any) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE, traces="somewhere", **settings), models, script.open) as server:
        yield server


def parents(*found: Any) -> list[int | None]:
    """Return the indices of the spans' parents."""
    ids = [span.context.span_id for span in found]
    return [None if span.parent is None else ids.index(span.parent.span_id) for span in found]


def test_a_request_is_a_tree_of_spans(models: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE, traces="somewhere"), models) as server:
        asked = {**CHAT, "options": {"num_predict": 4, "ignore_eos": True}}
        server.post("/api/chat", asked)
        spans.wait(6)
        spans.exporter.clear()
        before = time.time()
        answer = server.post("/api/chat?key=secret", asked)
        after = time.time()
        request, job, load, queue, prefill, decode = found = spans.named(
            "POST /api/chat", "chat helper:latest", "load", "queue", "prefill", "decode"
        )
    told = answer.json
    assert parents(*found) == [None, 0, 1, 1, 1, 1]
    assert (request.kind, job.kind, load.kind) == (SpanKind.SERVER, *[SpanKind.INTERNAL] * 2)
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "url.path": "/api/chat",
        "http.route": "/api/chat",
        "http.response.status_code": 200,
        "client.address": "127.0.0.1",
        "chaski.request.id": answer.headers["x-request-id"],
    }
    attributes = dict(job.attributes)
    latencies = {
        name.removeprefix("gen_ai.latency."): attributes.pop(name)
        for name in list(attributes)
        if name.startswith("gen_ai.latency.")
    }
    assert attributes == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "chaski",
        "gen_ai.request.model": "helper:latest",
        "gen_ai.request.id": answer.headers["x-request-id"],
        "gen_ai.request.max_tokens": 4,
        "gen_ai.usage.input_tokens": told["prompt_eval_count"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": told["prompt_cached_count"],
        "gen_ai.response.finish_reasons": ("length",),
    }
    assert told["prompt_cached_count"] > 0
    prefilling, decoding = (told[f"{name}_duration"] / 1e9 for name in ("prompt_eval", "eval"))
    assert latencies["time_in_model_prefill"] == pytest.approx(prefilling, abs=1e-6)
    assert latencies["time_in_model_decode"] == pytest.approx(decoding, abs=1e-6)
    assert latencies["time_in_model_inference"] == pytest.approx(prefilling + decoding, abs=1e-6)
    assert 0 <= latencies["time_in_queue"] < latencies["time_to_first_token"] < latencies["e2e"]
    # Phases follow one another within the job, the job is within the request, and the request is recent.
    times = [each for span in (load, queue, prefill, decode) for each in (span.start_time, span.end_time)]
    assert times == sorted(times)
    assert times[1::2][:-1] == times[2::2]
    assert job.start_time == load.start_time
    assert job.end_time == decode.end_time
    assert before <= request.start_time / 1e9 <= job.start_time / 1e9
    assert job.end_time <= request.end_time <= after * 1e9 + 1e7
    assert (queue.end_time - queue.start_time) / 1e9 == pytest.approx(latencies["time_in_queue"], abs=1e-6)
    assert (prefill.end_time - prefill.start_time) / 1e9 == pytest.approx(prefilling, abs=2e-3)
    assert not any("secret" in span.to_json() for span in spans.exporter.get_finished_spans())


def test_several_answers_are_several_jobs(models: Path, spans: Spans) -> None:
    with traced(models, Script()) as server:
        server.post("/v1/chat/completions", {**CHAT, "n": 3})
        found = spans.wait(16)
    jobs = [span for span in found if span.name == "chat helper:latest"]
    (request,) = [span for span in found if span.name == "POST /v1/chat/completions"]
    assert [job.parent.span_id for job in jobs] == [request.context.span_id] * 3
    assert {job.attributes["gen_ai.response.finish_reasons"] for job in jobs} == {("stop",)}


def test_stays_at_replicas_are_below_their_job(models: Path, spans: Spans) -> None:
    now = time.perf_counter()
    lost = Attempt("first", "there (10.0.0.2)", now, now + 1.0, "LostReplicaError")
    stays = (lost, Attempt("second", "here (10.0.0.1)", now + 1.5, now + 2.0))
    with traced(models, Script(attempts=stays)) as server:
        server.post("/api/chat", CHAT)
        found = spans.wait(8)
    (job,) = [span for span in found if span.name == "chat helper:latest"]
    replicas = [span for span in found if span.name == "replica"]
    assert [span.parent.span_id for span in replicas] == [job.context.span_id] * 2
    assert [span.status.status_code for span in replicas] == [StatusCode.ERROR, StatusCode.UNSET]
    assert [dict(span.attributes) for span in replicas] == [
        {
            "chaski.replica": "first",
            "chaski.node": "there (10.0.0.2)",
            "chaski.retry": 0,
            "error.type": "LostReplicaError",
        },
        {"chaski.replica": "second", "chaski.node": "here (10.0.0.1)", "chaski.retry": 1},
    ]
    assert replicas[1].start_time - replicas[0].end_time == pytest.approx(5e8, abs=1e5)


def test_failures(models: Path, spans: Spans) -> None:
    with traced(models, Script(pieces=["a", WorkerError("a secret")])) as server:
        server.post("/api/chat", {**CHAT, "stream": True})
        request, job, _, decode = spans.named("POST /api/chat", "chat helper:latest", "load", "decode")
        spans.exporter.clear()
        server.post("/api/chat", {**CHAT, "model": "nobody"})
        (missing,) = spans.named("POST /api/chat")
        spans.exporter.clear()
        server.get("/nothing/" + "x" * 500)
        (nothing,) = spans.named("GET")
        spans.exporter.clear()
        server.ask("BREW", "/api/chat")
        (strange,) = spans.named("HTTP /api/chat")
    assert request.status.status_code == job.status.status_code == StatusCode.ERROR
    assert request.attributes["error.type"] == job.attributes["error.type"] == "WorkerError"
    assert request.attributes["http.response.status_code"] == 200
    assert job.attributes["gen_ai.response.finish_reasons"] == ("error",)
    assert job.attributes["gen_ai.usage.output_tokens"] == 1
    assert decode.end_time == job.end_time
    assert "secret" not in request.to_json() + job.to_json()
    assert missing.attributes["error.type"] == "ModelNotFoundError"
    assert missing.status.status_code == StatusCode.UNSET
    assert "http.route" not in nothing.attributes
    assert nothing.attributes["url.path"] == "/nothing/" + "x" * 191
    assert strange.attributes["http.request.method"] == "_OTHER"
    assert strange.attributes["http.request.method_original"] == "BREW"
    assert strange.attributes["http.response.status_code"] == 405


def test_a_model_that_cannot_be_loaded(models: Path, spans: Spans) -> None:
    with traced(models, Script(fail=lambda options: OutOfMemoryError("too large"))) as server:
        server.post("/api/chat", CHAT)
        request, job, load = spans.named("POST /api/chat", "chat helper:latest", "load")
    assert request.status.status_code == job.status.status_code == StatusCode.ERROR
    assert job.attributes["error.type"] == "OutOfMemoryError"
    assert (load.start_time, load.end_time) == (job.start_time, job.end_time)


def test_a_client_that_leaves(models: Path, spans: Spans) -> None:
    script = Script(hold=threading.Event())
    sent = json.dumps(CHAT).encode()
    with traced(models, script) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n"
            client.sendall(head.encode() + sent)
            wait_until(lambda: server.services.models.loaded and server.services.models.loaded[0].users)
        request, job, _ = spans.named("POST /api/chat", "chat helper:latest", "load")
        script.hold.set()
    assert request.attributes["chaski.cut_off"] is True
    assert "http.response.status_code" not in request.attributes
    assert job.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert request.status.status_code == job.status.status_code == StatusCode.UNSET


def test_an_answer_that_goes_on_ends_later_than_its_request(models: Path, spans: Spans) -> None:
    script = Script(hold=threading.Event())
    answer_id = "an-answer-of-these-tests"
    with traced(models, script) as server:
        with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
            connection.request("POST", "/api/chat", json.dumps({**CHAT, "answer_id": answer_id}))
            wait_until(lambda: server.services.models.loaded and server.services.models.loaded[0].users)
        (request,) = spans.named("POST /api/chat")
        script.hold.set()
        job = spans.named("chat helper:latest", "load", "queue", "prefill", "decode", "POST /api/chat")[0]
        spans.exporter.clear()
        server.get(f"/api/answers/{answer_id}")
        (again,) = spans.named("GET /api/answers/{id}")
    assert request.attributes["chaski.cut_off"] is True
    assert job.parent.span_id == request.context.span_id
    assert job.end_time > request.end_time
    assert job.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert again.parent is None


def test_refused_requests_and_names_of_keys(models: Path, spans: Spans) -> None:
    with traced(models, Script(), api_keys=("hers", "his"), admin_keys=("theirs",)) as server:
        server.get("/api/tags", Authorization="Bearer his")
        server.get("/api/tags", Authorization="Bearer nobody's")
        server.post("/api/pull", {}, Authorization="Bearer hers")
        server.get("/api/tags", Host="evil.example")
        found = spans.wait(4)
    told = [
        (span.name, span.attributes.get("chaski.key"), span.attributes["http.response.status_code"])
        for span in found
    ]
    assert told == [
        ("GET /api/tags", "api-2", 200),
        ("GET", None, 401),
        ("POST", "api-1", 403),
        ("GET", None, 403),
    ]
    text = "".join(span.to_json() for span in found)
    assert not any(key in text for key in ("hers", "his", "theirs", "nobody's"))


def test_other_jobs_of_models(models: Path, spans: Spans) -> None:
    with traced(models, Script()) as server:
        server.post("/api/generate", {"model": "helper"})
        server.post("/api/tokenize", {"model": "helper", "content": "a secret"})
        found = spans.wait(6)
    told = [span.name for span in found if span.name.endswith("latest")]
    assert told == ["load helper:latest", "tokenize helper:latest"]
    assert not any("secret" in span.to_json() for span in found)


def test_the_client_may_name_the_parent(models: Path, spans: Spans) -> None:
    with traced(models, Script()) as server:
        server.get("/api/version", traceparent=PARENT, tracestate="vendor=1")
        (span,) = spans.wait(1)
    assert span.parent.span_id == 0x00F067AA0BA902B7
    assert span.parent.is_remote
    assert span.context.trace_id == 0x4BF92F3577B34DA6A3CE929D0E0E4736
    assert span.context.trace_state.get("vendor") == "1"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "nonsense",
        PARENT[:-1],
        "ff" + PARENT[2:],
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        PARENT.upper(),
        PARENT + "-" + "x" * 5000,
    ],
)
def test_a_parent_that_is_none_is_ignored(models: Path, spans: Spans, given: str) -> None:
    with traced(models, Script()) as server:
        server.get("/api/version", traceparent=given, tracestate="vendor=" + "1" * 5000)
        (span,) = spans.wait(1)
    assert span.parent is None
    assert not span.context.trace_state


def test_two_parents_are_none(models: Path, spans: Spans) -> None:
    with traced(models, Script()) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"GET /api/version HTTP/1.1\r\nHost: localhost\r\ntraceparent: {PARENT}\r\n"
            client.sendall(f"{head}traceparent: {PARENT}\r\n\r\n".encode())
            client.recv(100)
        (span,) = spans.wait(1)
    assert span.parent is None


def test_requests_that_are_not_sampled_have_none(
    models: Path, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced(models, Script()) as server:
        assert server.post("/api/chat", CHAT, traceparent=PARENT[:-1] + "0").status == 200
    assert not spans.exporter.get_finished_spans()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with traced(models, Script()) as server:
        assert server.post("/api/chat", CHAT).status == 200
    assert not spans.exporter.get_finished_spans()


def test_requests_of_batches_make_none(models: Path, spans: Spans) -> None:
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT}
    data = b"--x\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
    data += b"--x\r\nContent-Disposition: form-data; name=file; filename=a.jsonl\r\n\r\n"
    data += json.dumps(line).encode() + b"\n\r\n--x--\r\n"
    with traced(models, Script()) as server:
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        file_id = server.ask("POST", "/v1/files", data, form).json["id"]
        asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = server.post("/v1/batches", asked).json["id"]
        wait_until(lambda: server.get(f"/v1/batches/{batch}").json["status"] == "completed")
    names = {span.name for span in spans.exporter.get_finished_spans()}
    assert names == {"POST /v1/files", "POST /v1/batches", "GET /v1/batches/{id}"}
