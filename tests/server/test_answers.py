"""Answers that continue without their client, and are followed again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection

import pytest

from chaski.chat.events import Text
from chaski.errors import BusyError, ResponseNotFoundError
from chaski.server.answering.answers import Answers
from chaski.server.answering.events import Delta, ServiceEvents
from tests.server.fake_worker import Script
from tests.server.running import Running, wait_until
from tests.server.thinker import fake, fresh, script

__all__ = ["fake", "fresh", "script"]

ID = "an-answer-of-these-tests"


@pytest.fixture
def held(script: Script) -> Iterator[threading.Event]:
    """Answers wait until this is set."""
    script.hold = threading.Event()
    yield script.hold
    script.hold.set()
    script.hold = None


def body(answer_id: str) -> dict[str, object]:
    return {"model": "thinker", "messages": [{"role": "user", "content": "x"}], "answer_id": answer_id}


def leave(server: Running, answer_id: str) -> None:
    """Send a request, and close the connection at once."""
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        connection.request("POST", "/api/chat", json.dumps(body(answer_id)))
        wait_until(lambda: ("", answer_id) in server.services.answers._found)


def test_an_answer_goes_on_without_its_client(fake: Running, script: Script, held: threading.Event) -> None:
    script.pieces = ("<think>", "so", "</think>", "hello ", "ünd")
    leave(fake, ID)
    answer = fake.services.answers.get("", ID)
    wait_until(lambda: not answer.followers)
    held.set()
    wait_until(lambda: answer.is_over)
    for _ in range(2):  # each request gets it again
        *said, end = fake.get(f"/api/answers/{ID}").lines
        assert "".join(line["message"]["content"] for line in said) == "hello ünd"
        assert "".join(line["message"].get("thinking", "") for line in said) == "so"
        assert end["done"]
        assert end["done_reason"] == "stop"
        assert end["eval_count"] == 5


def test_a_client_that_stays_sees_the_same(fake: Running) -> None:
    plain = fake.post("/api/chat", {**body("x"), "answer_id": None}).lines
    kept = fake.post("/api/chat", body("b" * 22)).lines
    assert [line["message"] for line in kept] == [line["message"] for line in plain]
    whole = fake.post("/api/chat", {**body("c" * 22), "stream": False}).json
    assert whole["message"]["content"] == "hello"


def test_a_stopped_answer_is_gone(fake: Running, script: Script, held: threading.Event) -> None:
    leave(fake, "d" * 22)
    task = fake.services.answers.get("", "d" * 22).task
    assert fake.ask("DELETE", f"/api/answers/{'d' * 22}").json == {"stopped": True}
    assert task.done()
    for method in ("GET", "DELETE"):
        reply = fake.ask(method, f"/api/answers/{'d' * 22}")
        assert reply.status == 404
        assert "not found" in reply.error


@pytest.mark.parametrize("answer_id", ["", "short", "e" * 65, "é" * 30, "../" * 10])
def test_ids_that_can_be_guessed_are_refused(fake: Running, answer_id: str) -> None:
    reply = fake.post("/api/chat", body(answer_id))
    assert reply.status == 400
    assert "answer_id" in reply.error


def test_errors_keep_their_status(fake: Running) -> None:
    reply = fake.post("/api/chat", {**body("f" * 22), "model": "nobody"})
    assert reply.status == 404
    assert fake.get(f"/api/answers/{'f' * 22}").status == 404
    taken = [fake.post("/api/chat", body("g" * 22)).status for _ in range(2)]
    assert taken == [200, 409]


async def forever() -> ServiceEvents:
    while True:
        yield Delta([Text("x" * 100)])
        await asyncio.sleep(0.01)


async def once() -> ServiceEvents:
    yield Delta([Text("x" * 100)])


def test_nobody_comes_back() -> None:
    async def wait() -> None:
        answers = Answers(patience=0.05)
        answer = answers.begin("me", ID, "m", forever())
        async for _ in answers.follow("me", ID):
            break
        with pytest.raises(ResponseNotFoundError):
            answers.get("you", ID)
        assert answer.task is not None
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(answer.task, 5)
        with pytest.raises(ResponseNotFoundError):
            answers.get("me", ID)

    asyncio.run(wait())


def test_ended_answers_are_kept_for_a_while() -> None:
    async def wait() -> None:
        answers = Answers(kept_seconds=0.05)
        answers.begin("me", ID, "m", once())
        assert len([event async for event in answers.follow("me", ID)]) == 1
        answers.get("me", ID)
        await asyncio.sleep(0.2)
        with pytest.raises(ResponseNotFoundError):
            answers.get("me", ID)

    asyncio.run(wait())


@pytest.mark.parametrize("limits", [{"max_count": 2}, {"max_bytes": 199}])
def test_not_more_is_kept_than_fits(limits: dict[str, int]) -> None:
    async def wait() -> None:
        answers = Answers(**limits)
        for name in "ab":
            answers.begin("me", name * 22, "m", once())
            assert [event async for event in answers.follow("me", name * 22)]
        answers.begin("me", "c" * 22, "m", forever())
        with pytest.raises(ResponseNotFoundError):
            answers.get("me", "a" * 22)
        answers.begin("me", "d" * 22, "m", forever())
        await asyncio.sleep(0.1)
        with pytest.raises(BusyError):
            answers.begin("me", "e" * 22, "m", forever())
        await answers.close()

    asyncio.run(wait())


def test_log_probabilities_are_kept(server: Running) -> None:
    asked = {"model": "helper", "messages": [{"role": "user", "content": "How do I pull a model?"}]}
    kept = server.post(
        "/api/chat", asked | {"answer_id": "i" * 22, "logprobs": True, "top_logprobs": 2}
    ).lines
    for lines in (kept, server.get(f"/api/answers/{'i' * 22}").lines):
        scores = [score for line in lines for score in line.get("logprobs", ())]
        assert len(scores) == lines[-1]["eval_count"]
        assert all(len(score["top_logprobs"]) == 2 for score in scores)
        text = "".join(line["message"]["content"] for line in lines)
        assert "".join(score["token"] for score in scores).startswith(text)


def test_an_answer_begins_with_a_text(server: Running) -> None:
    asked = {"model": "helper", "messages": [{"role": "user", "content": "How do I pull a model?"}]}
    whole = server.post("/api/chat", asked | {"logprobs": True, "stream": False}).json
    for count in (1, 7):
        begun = "".join(score["token"] for score in whole["logprobs"][:count])
        reply = server.post("/api/chat", asked | {"answer_prefix": begun, "stream": False}).json
        assert reply["message"]["content"].startswith(whole["message"]["content"])
        assert reply["prompt_eval_count"] == whole["prompt_eval_count"] + count
    other = server.post("/api/chat", asked | {"answer_prefix": "Never", "stream": False}).json
    assert other["message"]["content"].startswith("Never")
    for refused in ({"format": "json"}, {"options": {"regex": "a+"}}):
        reply = server.post("/api/chat", asked | {"answer_prefix": "x"} | refused)
        assert "exclude each other" in reply.error


def test_a_begun_thought_is_one(fake: Running, script: Script) -> None:
    script.pieces = (" more</think>", "so")
    reply = fake.post("/api/chat", {**body("j" * 22), "answer_prefix": "<think>hm", "stream": False}).json
    assert (reply["message"]["thinking"], reply["message"]["content"]) == ("hm more", "so")
