"""The server survives many clients, clients that leave, and a model that dies."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import chaski
from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.fake_worker import Script
from tests.server.running import Running, running, wait_until

CLIENTS = 64
LIVELY = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "num_predict": 24}


def asked(seed: int) -> dict[str, object]:
    question = [{"role": "user", "content": f"number {seed}: how do I use fewer cores?"}]
    return {"model": "guide", "messages": question, "options": LIVELY | {"seed": seed}}


@pytest.mark.long
def test_64_clients_stream_at_once_and_nobody_gets_anothers_words(server: Running) -> None:
    def stream(seed: int) -> str:
        lines = server.post("/api/chat", asked(seed)).lines
        assert lines[-1]["done"]
        return "".join(line["message"]["content"] for line in lines)

    with ThreadPoolExecutor(CLIENTS) as threads:
        together = list(threads.map(stream, range(CLIENTS)))
    alone = [stream(seed) for seed in range(0, CLIENTS, 8)]
    assert together[::8] == alone
    assert len(set(together)) > 8


def test_a_model_that_dies_takes_nobody_with_it(server: Running) -> None:
    server.post("/api/chat", asked(1))
    (loaded,) = [each for each in server.services.models.loaded if each.name.startswith("guide")]
    with chaski.load("guide") as model:
        (end,) = model.tokenizer.eos_ids
    options = {"num_predict": 1_000_000, "logit_bias": {str(end): -100}}
    endless = {"model": "guide", "prompt": "a", "raw": True, "options": options, "stream": False}
    waiting = ThreadPoolExecutor(1).submit(server.post, "/api/generate", endless)
    wait_until(lambda: any(each["sequences"] for each in server.get("/api/live").json["models"]))
    os.kill(loaded.worker.pid, signal.SIGKILL)
    reply = waiting.result(10)
    assert reply.status == 500
    assert "model runner has unexpectedly stopped" in reply.error
    assert "/" not in reply.error.split("details:")[1]
    assert server.post("/api/chat", asked(3) | {"stream": False}).status == 200


@pytest.mark.long
@pytest.mark.parametrize("stream", [True, False])
def test_a_model_that_was_killed_at_rest_is_started_again(server: Running, stream: bool) -> None:
    """The next request is answered, however soon it comes."""
    body = asked(4) | {"stream": stream}
    expected = server.post("/api/chat", body).lines[-1]["done_reason"]
    for _ in range(3):
        (loaded,) = [each for each in server.services.models.loaded if each.name.startswith("guide")]
        os.kill(loaded.worker.pid, signal.SIGKILL)
        reply = server.post("/api/chat", body)
        assert reply.status == 200
        assert reply.lines[-1]["done_reason"] == expected


@pytest.fixture
def held(models: Path) -> Iterator[tuple[Running, Script]]:
    """Run a server whose model answers when the test allows it, two at a time."""
    script = Script(hold=threading.Event(), pieces=("one", "two"))
    settings = Settings(address=SOMEWHERE, parallel=1, max_queue=2)
    with running(settings, models, script.open) as server:
        yield server, script
        assert script.hold is not None
        script.hold.set()


def test_full_queues_say_when_to_come_back(held: tuple[Running, Script]) -> None:
    server, script = held
    body = {"model": "helper", "prompt": "x", "stream": False}
    server.post("/api/generate", {"model": "helper"})
    with ThreadPoolExecutor(9) as threads:
        replies = [threads.submit(server.post, "/api/generate", body) for _ in range(5)]
        wait_until(
            lambda: server.services.models.loaded and server.services.models.loaded[0].queue.waiting == 2
        )
        refused = server.post("/api/generate", body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.error == "server busy, please try again.  maximum pending requests exceeded"
        metrics = server.get("/metrics").body.decode()
        assert 'chaski_waiting{model="helper:latest"} 2.0' in metrics
        assert server.get("/health").json["models"] == [{"model": "helper:latest", "users": 5}]
        assert script.hold is not None
        script.hold.set()
        assert [reply.result().json["response"] for reply in replies] == ["onetwo"] * 5
    assert 'chaski_answers_total{model="helper:latest"} 5.0' in server.get("/metrics").body.decode()


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_is_not_waited_for(held: tuple[Running, Script], stream: bool) -> None:
    server, script = held
    body = b'{"model": "helper", "prompt": "x", "stream": %s}' % str(stream).lower().encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        wait_until(lambda: server.services.models.loaded and server.services.models.loaded[0].users)
    wait_until(lambda: script.cancelled)
    wait_until(lambda: not server.services.models.loaded[0].users)
