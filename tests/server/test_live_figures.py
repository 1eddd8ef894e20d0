"""`GET /api/live`: the activity of server, models and sequences while answers are computed."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until

SECRET = "gloriosa"
LONG = {"num_predict": 600, "seed": 1, "temperature": 1.0, "ignore_eos": True}


def generate(server: Running, number: int, **options: Any) -> Any:
    prompt = f"{number} {SECRET} " * 20
    body = {"model": "helper", "prompt": prompt, "raw": True, "stream": False, "options": options}
    return server.post("/api/generate", body).json


def test_a_server_without_models(models: Any) -> None:
    with running(Settings(address=SOMEWHERE), models) as server:
        told = server.get("/api/live").json
    assert told["models"] == []
    about = told["server"]
    assert about["memory_bytes"] > about["available_bytes"] > 0
    assert about["models_bytes"] == about["waiting_for_load"] == 0
    assert about["first_tokens"] == about["first_token_seconds"] == 0
    assert about["uptime_seconds"] > 0


def test_figures_of_sequences_while_they_run(server: Running) -> None:
    first = generate(server, 0, num_predict=2)
    seen: list[Any] = []
    enough = threading.Event()

    def ask(number: int) -> list[Any]:
        """Repeat the request: figures may be 0.4 s old, which may be longer than an answer takes."""
        told = [generate(server, number, **LONG)]
        while not enough.is_set():
            told.append(generate(server, number, **LONG))
        return told

    def look() -> bool:
        (model,) = server.get("/api/live").json["models"]
        seen.append(model)
        # Each sequence waits for a moment, and the speed is known after several steps.
        computing = [each for each in model["sequences"] if each["state"] != "waiting"]
        return len(computing) == model["running"] == 3 and model["generated_tokens_per_second"] > 0

    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, number) for number in (1, 2, 3)]
        try:
            wait_until(look)
        finally:
            enough.set()
        answers = [answer for each in asked for answer in each.result()]
    busiest = seen[-1]
    assert busiest["num_sequences"] == len(busiest["sequences"]) == 3
    for sequence in busiest["sequences"]:
        assert sequence["state"] in ("prefill", "decode")
        assert sequence["cached_tokens"] + sequence["computed_tokens"] <= sequence["prompt_tokens"]
        assert sequence["prompt_tokens"] == answers[0]["prompt_eval_count"]
        assert 0 <= sequence["slot"] < busiest["parallel"]
        assert sequence["seconds"] > 0
    assert len({sequence["id"] for sequence in busiest["sequences"]}) == 3
    assert SECRET not in json.dumps(seen)
    answers += [first, generate(server, 0, num_predict=1)]
    number = sum(each["eval_count"] for each in answers)

    def model() -> Any:
        return server.get("/api/live").json["models"][0]

    # Figures may be older than the last answer.
    wait_until(lambda: model()["generated_tokens"] >= number and not model()["num_sequences"])
    last = model()
    assert last["generated_tokens"] == number
    assert last["prompt_tokens"] <= len(answers) * first["prompt_eval_count"]
    cached = last["cached_tokens_by_tier"]
    assert last["prompt_tokens"] + sum(cached.values()) == len(answers) * first["prompt_eval_count"]
    assert cached["cells"] > 0
    for name in ("proposed", "accepted"):
        assert last[f"{name}_tokens"] == sum(each.get(f"{name}_count", 0) for each in answers)
    assert last["dropped_tokens"] == 0
    assert last["memory"]["total"] == sum(size for part, size in last["memory"].items() if part != "total")


def test_the_times_to_first_tokens_are_added_up(server: Running) -> None:
    time.sleep(0.5)  # Figures may be 0.4 s old.
    before = server.get("/api/live").json["server"]
    seconds = [generate(server, number, num_predict=9)["total_duration"] / 1e9 for number in (7, 8)]
    wait_until(lambda: server.get("/api/live").json["server"]["first_tokens"] >= before["first_tokens"] + 2)
    after = server.get("/api/live").json["server"]
    assert after["first_tokens"] == before["first_tokens"] + 2
    assert 0 < after["first_token_seconds"] - before["first_token_seconds"] < sum(seconds) + 0.1


def test_a_line_a_second_until_the_client_leaves(server: Running) -> None:
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("GET", "/api/live?stream=1")
        with connection.getresponse() as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            first, second = (json.loads(response.readline()) for _ in range(2))
    passed = second["server"]["uptime_seconds"] - first["server"]["uptime_seconds"]
    assert 0.8 < passed < 5


def test_a_wrong_switch_is_refused(server: Running) -> None:
    refused = server.get("/api/live?stream=perhaps")
    assert refused.status == 400
    assert "stream is 'perhaps'" in refused.error


def test_all_who_watch_at_a_time_ask_a_worker_once(models: Any) -> None:
    script = Script()
    with running(Settings(address=SOMEWHERE), models, script.open) as server:
        generate(server, 1)
        server.get("/api/live")
        before = len(script.asked)
        with ThreadPoolExecutor(8) as pool:
            told = list(pool.map(lambda _: server.get("/api/live").json, range(8)))
        assert len(script.asked) - before <= 4
        assert all(each["models"][0]["memory"]["total"] for each in told)


def test_it_wants_a_key_where_there_are_keys(models: Any) -> None:
    with running(Settings(address=SOMEWHERE, api_keys=("k",)), models) as server:
        assert server.get("/api/live").status == 401
        assert server.get("/api/live", authorization="Bearer k").status == 200
