"""The line of each request in the log: its content, and data that it never contains."""

from __future__ import annotations

import json
import logging
import re
import socket

import pytest

import chaski
from tests.server.running import Running, wait_until


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.endswith("access_log")]


def test_each_request_has_a_line(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "chaski.server.http.access_log")
    reply = server.post("/api/chat", {"model": "nobody", "messages": [{"role": "user", "content": "secret"}]})
    answer = server.post(
        "/api/generate?key=secret",
        {"model": "helper", "prompt": "secret"},
        Authorization="Bearer secret",
    )
    server.get("/api/tags", Host="evil.example")
    wait_until(lambda: len(logged(caplog)) == 3)
    missing, answered, refused = logged(caplog)
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"
    form = when + r' 127\.0\.0\.1 "POST /api/chat" 404 \d+\.\d ms (\d+) bytes'
    assert (found := re.fullmatch(form, missing))
    assert int(found[1]) == len(reply.body)
    assert '"POST /api/generate" 200 ' in answered
    assert answered.endswith(f" {len(answer.body)} bytes")
    assert '"GET /api/tags" 403 ' in refused
    assert "secret" not in " ".join(logged(caplog))


def test_a_strange_path_and_a_client_that_leaves(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "chaski.server.http.access_log")
    server.get("/x%1b]0;title%07%0aforged")
    with chaski.load("guide") as model:
        (end,) = model.tokenizer.eos_ids
    options = {"num_predict": 100_000, "logit_bias": {str(end): -100}}
    sent = json.dumps({"model": "helper", "prompt": "a", "raw": True, "options": options}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        head = f"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n"
        client.sendall(head.encode() + sent)
        client.recv(100)
    wait_until(lambda: len(logged(caplog)) == 2)
    strange, left = logged(caplog)
    assert '"GET /x\\x1b]0;title\\x07\\nforged" 404 ' in strange
    assert left.endswith(" bytes cut off")


def test_nothing_is_logged_unless_asked_for(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "chaski.server.http.access_log")
    server.get("/api/tags")
    assert not logged(caplog)
