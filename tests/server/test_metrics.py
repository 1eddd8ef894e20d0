"""The Prometheus page: vLLM's names with our own figures, and a bounded number of series."""

from __future__ import annotations

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chaski.chat.events import Done, PromptTokens, Text
from chaski.errors import WorkerError
from chaski.server.models.pool import ModelPool
from chaski.server.settings import Settings
from chaski.server.telemetry import metrics as metrics_module
from chaski.server.telemetry.metrics import Metrics
from chaski.server.telemetry.record import RequestRecord
from chaski.server.telemetry.recorder import Recorder
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until

HELPER = "helper:latest"
OF_MODEL = {"model_name": HELPER, "engine": "0"}


class Page:
    """The samples of a page."""

    def __init__(self, text: str) -> None:
        families = list(text_string_to_metric_families(text))
        self.types = {family.name: family.type for family in families}
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, *sorted(labels.items())]

    def vllm(self, name: str, **labels: str) -> float:
        return self.value(f"vllm:{name}", **OF_MODEL, **labels)

    @property
    def models(self) -> set[str]:
        return {
            value for _, *labels in self.samples for name, value in labels if name in ("model_name", "model")
        }


def page(server: Running) -> Page:
    return Page(server.get("/metrics").body.decode())


def generate(server: Running, **fields: Any) -> Any:
    body = {
        "model": "helper",
        "prompt": "How do I pull a model? " * 8,
        "raw": True,
        "stream": False,
        **fields,
    }
    return server.post("/api/generate", body).json


def test_figures_of_answers_under_the_names_of_vllm(models: Any) -> None:
    with running(Settings(address=SOMEWHERE, parallel=2), models) as server:
        options = {"num_predict": 12, "temperature": 0, "ignore_eos": True}
        answers = [generate(server, options=options) for _ in range(2)]
        told = page(server)
    prompts = sum(each["prompt_eval_count"] for each in answers)
    cached = sum(each.get("prompt_cached_count", 0) for each in answers)
    assert cached > 0
    assert told.vllm("prompt_tokens_total") == told.vllm("prefix_cache_queries_total") == prompts
    assert told.vllm("prefix_cache_hits_total") == cached
    assert told.vllm("generation_tokens_total") == 24
    assert told.vllm("request_generation_tokens_sum") == told.vllm("request_params_max_tokens_sum") == 24
    assert told.vllm("request_prefill_kv_computed_tokens_sum") == prompts - cached
    assert told.vllm("request_success_total", finished_reason="length") == 2
    assert told.vllm("request_success_total", finished_reason="stop") == 0
    prefill = sum(each["prompt_eval_duration"] for each in answers) / 1e9
    decode = sum(each["eval_duration"] for each in answers) / 1e9
    assert told.vllm("request_prefill_time_seconds_sum") == pytest.approx(prefill, abs=1e-6)
    assert told.vllm("request_decode_time_seconds_sum") == pytest.approx(decode, abs=1e-6)
    assert told.vllm("request_inference_time_seconds_sum") == pytest.approx(prefill + decode, abs=1e-6)
    assert told.vllm("request_time_per_output_token_seconds_sum") == pytest.approx(decode / 11, abs=1e-6)
    total = told.vllm("e2e_request_latency_seconds_sum")
    first = told.vllm("time_to_first_token_seconds_sum")
    assert prefill < first < total
    assert first + decode <= total
    assert total == pytest.approx(sum(each["total_duration"] for each in answers) / 1e9, rel=0.05)
    assert 0 <= told.vllm("request_queue_time_seconds_sum") < total - prefill - decode + 1e-3
    assert 2 <= told.vllm("inter_token_latency_seconds_count") <= 22
    # Pieces that are late on a busy machine arrive closer together.
    assert 0 < told.vllm("inter_token_latency_seconds_sum") < total
    assert told.vllm("num_requests_running") == told.vllm("num_requests_waiting") == 0
    assert told.vllm("kv_cache_usage_perc") == 0


def test_what_waits_and_runs(models: Any) -> None:
    script = Script(hold=threading.Event())
    with running(Settings(address=SOMEWHERE, parallel=2), models, script.open) as server:
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(generate, server) for _ in range(6)]
            wait_until(lambda: server.services.models.loaded and server.services.models.loaded[0].users == 6)
            told = page(server)
            script.hold.set()
            assert [each.result()["response"] for each in asked] == ["hello"] * 6
        assert (told.vllm("num_requests_running"), told.vllm("num_requests_waiting")) == (2, 4)
        assert told.vllm("kv_cache_usage_perc") == 0.25
        assert page(server).vllm("request_success_total", finished_reason="stop") == 6


def test_failures_and_clients_that_leave(models: Any) -> None:
    script = Script(pieces=["a", WorkerError("broken")])
    with running(Settings(address=SOMEWHERE), models, script.open) as server:
        assert "error" in generate(server)
        told = page(server)
        assert told.vllm("request_success_total", finished_reason="error") == 1
        assert told.vllm("generation_tokens_total") == 1
        script.hold, script.pieces = threading.Event(), ["a"] * 5
        sent = json.dumps({"model": "helper", "prompt": "a", "raw": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n"
            client.sendall(head.encode() + sent)
            wait_until(lambda: server.services.models.loaded[0].users)
        wait_until(lambda: page(server).vllm("request_success_total", finished_reason="abort") == 1)
        script.hold.set()


def test_names_that_no_model_has_make_no_series(server: Running) -> None:
    for name in ("nobody", 'x"} 1\nforged{a="', "helper\x00", "../../etc"):
        assert server.post("/api/generate", {"model": name, "prompt": "a"}).status >= 400
    generate(server, model="helper")
    assert page(server).models == {HELPER}


def test_hostile_names_are_escaped_and_many_names_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "_MAX_NAMES", 2)
    metrics = Metrics(ModelPool(Settings(address=SOMEWHERE), lambda *args, **options: None))
    hostile = 'x"} 1\nforged{a="\\'
    for name in (hostile, "second", *map(str, range(1000))):
        record = RequestRecord(name, "chat", 0.0, loaded=1.0)
        metrics.advance(name, 1, 0.1)
        record.ending = "error"
        metrics.count(record)
    text = metrics.page({})[0].decode()
    told = Page(text)
    assert told.models == {hostile, "second", "(others)"}
    assert "\nforged" not in text
    assert told.value("vllm:generation_tokens_total", model_name="(others)", engine="0") == 1000


def test_every_token_is_counted_once() -> None:
    """Tokens that end an answer have no text, and are counted with its end."""
    metrics = Metrics(ModelPool(Settings(address=SOMEWHERE), lambda *args, **options: None))
    recorder = Recorder(metrics)
    record = RequestRecord(HELPER, "chat", 0.0)
    recorder.loaded(record)
    recorder.note(record, PromptTokens(5, (1, 2, 3, 4, 5)))
    recorder.note(record, Text("a", (1, 2)))
    assert Page(metrics.page({})[0].decode()).vllm("generation_tokens_total") == 2
    recorder.note(record, Text("", ()))
    recorder.note(record, Text("b", (3,)))
    counts = {"prompt_tokens": 5, "cached_tokens": 2, "generated_tokens": 4, "dropped_tokens": 0}
    times = {"load_seconds": 0.0, "prefill_seconds": 0.0, "decode_seconds": 0.0}
    spoken = {"proposed_tokens": 3, "accepted_tokens": 2}
    recorder.note(record, Done(reason="stop", **counts, **times, **spoken))
    recorder.end(record, GeneratorExit())
    told = Page(metrics.page({})[0].decode())
    assert told.vllm("generation_tokens_total") == 4
    assert told.vllm("inter_token_latency_seconds_count") == 1
    assert told.vllm("spec_decode_num_draft_tokens_total") == 3
    assert told.vllm("spec_decode_num_accepted_tokens_total") == 2
    assert told.vllm("request_success_total", finished_reason="stop") == 1


# Facts about vLLM: the metrics that the panels of the dashboard in its repository ask for, and their types.
DASHBOARD = {
    "e2e_request_latency_seconds": "histogram",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "inter_token_latency_seconds": "histogram",
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "time_to_first_token_seconds": "histogram",
    "kv_cache_usage_perc": "gauge",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "request_success": "counter",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
}
NOT_TOLD = {"request_max_num_generation_tokens", "num_requests_swapped"}


def test_the_dashboard_of_vllm_finds_its_metrics(server: Running) -> None:
    generate(server, options={"num_predict": 4})
    told = page(server)
    assert {name: told.types.get(f"vllm:{name}") for name in DASHBOARD} == DASHBOARD
    assert not any(f"vllm:{name}" in told.types for name in NOT_TOLD)
