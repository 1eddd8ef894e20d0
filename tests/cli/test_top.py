"""`chaski top`: its picture, and its behaviour with present, absent, older and hostile servers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.cli.styled_lines import width_of
from chaski.cli.top_cells import cell_lines
from chaski.cli.top_lines import as_ansi, as_text, bar, fit, sparks
from chaski.cli.top_picture import ORDERS, View, picture
from chaski.server.settings import Settings
from tests.cli.terminals import SECONDS, Terminal, terminal
from tests.server.conftest import SOMEWHERE, models
from tests.server.running import Running, running

__all__ = ["models"]

HOSTILE = "\x1b]0;owned\x07\x9b31m\u202e日本" + "long" * 30


def sequence(number: int, **figures: Any) -> dict[str, Any]:
    names = ("prompt", "cached", "computed", "generated", "dropped", "proposed", "accepted")
    counts = {f"{name}_tokens": 0 for name in names}
    rates = {"prompt_tokens_per_second": 0.0, "generated_tokens_per_second": 0.0}
    about = {"id": number, "slot": number, "state": "decode", "seconds": 61.0}
    return about | counts | rates | figures


def figures(num_models: int = 1, num_sequences: int = 2, name: str = "small") -> dict[str, Any]:
    memory = {"weights": 3 * 10**9, "cache": 10**9, "plans": 0, "adapters": 0, "total": 4 * 10**9}
    model = {
        "engine": "native",
        "parallel": 4,
        "context_length": 100,
        "memory": memory,
        "running": 2,
        "waiting": 3,
        "prefix_cache": [{"tier": "disk", "blocks": 2, "tokens": 512, "bytes": 10**6, "max_bytes": 10**7}],
        "prompt_tokens": 1234,
        "generated_tokens": 56789,
        "cached_tokens_by_tier": {"cells": 4321, "memory": 0, "disk": 77},
        "dropped_tokens": 21,
        "proposed_tokens": 40,
        "accepted_tokens": 30,
        "prompt_tokens_per_second": 12.5,
        "generated_tokens_per_second": 34.5,
        "num_sequences": num_sequences,
        "sequences": [sequence(number, prompt_tokens=number) for number in range(num_sequences)],
    }
    server = {
        "version": "0.2.0",
        "uptime_seconds": 7200.0,
        "memory_bytes": 64 * 10**9,
        "available_bytes": 32 * 10**9,
        "models_bytes": 16 * 10**9,
        "waiting_for_load": 0,
    }
    names = [name if not number else f"{name}{number}" for number in range(num_models)]
    return {"server": server, "models": [deepcopy(model) | {"name": each} for each in names]}


def drawn(told: Any, view: View | None = None, width: int = 80, height: int | None = None) -> str:
    return as_text(picture(told, "http://here", view or View(), width, height))


def test_a_bar_shows_its_parts() -> None:
    def text(*parts: float, end: float = 10) -> str:
        return "".join(text for text, _ in bar(parts, end, 10))

    assert text(2, 3, 1) == "▒▒███▓····"
    assert text(0.01, 0, 0) == "▒·········"
    assert text(0, 0, 0) == text(0, end=0) == "·" * 10
    assert text(8, 8, 8) == "▒▒▒▒▒▒▒▒██"


def test_texts_have_their_width() -> None:
    for text in ("", "a", "a" * 7, "a" * 8, "日本日本", "日本日本日", HOSTILE, "e\u0301" * 9):
        for width in (1, 2, 7, 8):
            assert width_of(fit(text, width)) == width, (text, width)
    assert fit("abcdef", 4) == "abc…"
    assert sparks([0, 1, 2]) == "▁▅█" or sparks([0, 1, 2]) == "▁▄█"
    assert sparks([0, 0]) == "▁▁"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (80, 10), (60, 4)])
@pytest.mark.parametrize("count", [0, 1, 30])
def test_a_picture_fits_the_terminal(width: int, height: int, count: int) -> None:
    for num_models in (0, 1, 9):
        for view in (View(), View(has_help=True), View(problem="x" * 300), View(is_paused=True, first=99)):
            lines = picture(figures(num_models, count, HOSTILE), "http://here", view, width, height)
            assert len(lines) == height
            if not view.has_help:
                assert max(width_of("".join(text for text, _ in line)) for line in lines) <= width


def test_figures_of_the_picture() -> None:
    told = figures()
    told["models"][0]["sequences"][1] |= {
        "slot": None,
        "state": "prefill",
        "prompt_tokens": 80,
        "cached_tokens": 16,
        "computed_tokens": 32,
        "prompt_tokens_per_second": 77.7,
    }
    text = drawn(told)
    for words in ("up 2h00m", "16 GB models, 32 GB free of 64 GB", "34.5 tok/s generated", "small", "2/4"):
        assert words in text
    for words in ("3 GB weights, 1 GB cache", "disk tier", "2 blocks, 512 tokens, 1 MB of 10 MB", "56,789"):
        assert words in text
    for words in ("4,321 from cells, 0 from memory, 77 from disk", "21 dropped", "30 of 40 right (75%)"):
        assert words in text
    (row,) = (line for line in text.splitlines() if "prefill" in line)
    assert row.split()[0] == "-"
    assert row.split()[-5:] == ["80", "16", "0", "77.7", "1m01s"]
    assert 0 < row.count("▒") < row.count("█") < row.count("·")


@pytest.mark.parametrize("width", [80, 120])
def test_replicas_and_where_each_sequence_runs(width: int) -> None:
    told = figures()
    state = {"name": "4xwev5jp", "node": "vm (192.0.2.2)", "answers": 1, "places": 4}
    told["models"][0]["replicas"] = [{**state, "shards": [["vm (192.0.2.2)", 1], ["other (192.0.2.3)", 2]]}]
    told["models"][0]["waiting_for_replica"] = 2
    told["models"][0]["sequences"][0]["replica"] = "4xwev5jp"
    text = drawn(told, width=width)
    assert "4xwev5jp    1 of 4 places taken on vm (192.0.2.2), other (192.0.2.3)" in text
    assert "2 requests wait until the model is loaded again" in text
    assert "REPLICA" in text
    rows = [line for line in text.splitlines() if " decode " in line]
    assert "4xwev5jp" in rows[0]
    assert "4xwev5jp" not in rows[1]
    assert {len(row) for row in rows} <= {width}


def test_a_server_that_tells_less() -> None:
    """Older servers do not count cached, dropped or proposed tokens."""
    told = figures()
    for name in ("cached_tokens_by_tier", "dropped_tokens", "proposed_tokens", "accepted_tokens"):
        del told["models"][0][name]
    text = drawn(told)
    assert "56,789 generated" in text
    assert not any(line.startswith(("cached", "guessed")) for line in text.splitlines())


def test_a_model_without_figures_of_sequences() -> None:
    told = figures()
    told["models"][0]["engine"] = "llama.cpp"
    for name in ("prompt_tokens", "generated_tokens", "sequences", "num_sequences"):
        del told["models"][0][name]
    assert "No figures of sequences come from this model." in drawn(told)


def test_a_chosen_model_stays_chosen_and_in_sight() -> None:
    told = figures(num_models=20)
    view = View(chosen="small15")
    assert "> small15 " in drawn(told, view, height=24)
    told["models"].reverse()
    assert "> small15 " in drawn(told, view, height=24)
    assert "20 models in all" in drawn(told, view, height=24)
    view.chosen = "gone"
    assert "> small19 " in drawn(told, view, height=24)


def test_orders_of_sequences() -> None:
    told = figures(num_sequences=3)
    for number, (slot, generated) in enumerate([(2, 5), (None, 90), (0, 7)]):
        told["models"][0]["sequences"][number] |= {
            "slot": slot,
            "generated_tokens": generated,
            "generated_tokens_per_second": 100.0 - generated,
        }
    found = {}
    for order in ORDERS:
        lines = drawn(told, View(order=order)).splitlines()
        found[order] = [line.split()[0] for line in lines if " decode " in line]
    assert found == {
        "age": ["2", "-", "0"],
        "rate": ["2", "0", "-"],
        "tokens": ["-", "0", "2"],
        "slot": ["0", "2", "-"],
    }


def test_hostile_names_do_not_steer_the_terminal() -> None:
    told = figures(name=HOSTILE)
    told["models"][0]["engine"] = told["server"]["version"] = told["models"][0]["prefix_cache"][0]["tier"] = (
        HOSTILE
    )
    told["models"][0]["sequences"][0]["state"] = HOSTILE
    view = View(cells="\x1b[2J", problem=HOSTILE)
    for text in (drawn(told), drawn(told, view), as_ansi(picture(told, HOSTILE, View(), 80, 24), False)):
        for sequence in ("\x1b[1m", "\x1b[7m", "\x1b[0m"):
            text = text.replace(sequence, "")
        assert all(char.isprintable() or char == "\n" for char in text)


def test_no_colors_leave_bold_and_inverted_text() -> None:
    lines = picture(figures(), "http://here", View(problem="away"), 80, 24)
    assert "\x1b[1;31m" in as_ansi(lines, True)
    plain = as_ansi(lines, False)
    assert "\x1b[7m" in plain
    assert "\x1b[3" not in plain
    assert "\x1b[9" not in plain


def test_cells_as_signs() -> None:
    slots = [{"tokens": 6, "is_running": True}, {"tokens": 4, "is_running": False}]
    kind = {"kind": "all tokens", "is_state": False, "cells": 20}
    cells = {"slots": slots, "kinds": [kind | {"runs": [[0, 0, 0, 6, 1], [1, 0, 0, 2, 1], [1, 18, 2, 9, 1]]}]}
    lines = as_text(cell_lines(cells, 50, 12)).splitlines()
    assert lines[0] == "0: 6 tokens   1: 4 kept"
    assert lines[1] == "all tokens: 8 of 20 cells taken, 2 shared"
    assert lines[2] == "++0000············11"
    alternating = cells | {"kinds": [kind | {"runs": [[0, 0, 0, 4, 2], [1, 1, 0, 3, 2]]}]}
    assert as_text(cell_lines(alternating, 50, 12)).splitlines()[2] == "0101010·············"
    small = as_text(cell_lines(cells, 5, 6)).splitlines()
    assert len(small) <= 6


@contextmanager
def answering(status: int, body: bytes, port: int = 0) -> Iterator[str]:
    """Run a server with one answer for every request; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def top(host: str, *arguments: str, **environment: str) -> Result:
    variables = {"OLLAMA_HOST": host, **environment}
    return CliRunner().invoke(chaski_command, ["top", *arguments], env=variables)


@pytest.mark.long
def test_servers_that_have_no_figures() -> None:
    assert "run 'chaski serve' to start one" in top("127.0.0.1:1", "--once").stderr
    with answering(404, b'{"error": "no such page"}') as host:
        for option in ("--once", "--json"):
            result = top(host, option)
            assert "has no live figures: they come with chaski 0.2.0" in result.stderr
            assert result.exit_code == 1
    with answering(200, b"<html>") as host:
        assert "something else than a JSON object" in top(host, "--once").stderr
    for wrong in (b"{}", b'{"server": [], "models": []}', json.dumps(figures() | {"models": [3]}).encode()):
        with answering(200, wrong) as host:
            assert "figures cannot be read" in top(host, "--once").stderr
    with answering(200, json.dumps(figures()).encode()) as host:
        result = top(host, "--json")
        assert json.loads(result.stdout) == figures()
        assert "has ended" in result.stderr


def test_keys(models: Path) -> None:
    with running(Settings(address=SOMEWHERE, api_keys=("k",)), models) as server:
        host = f"127.0.0.1:{server.port}"
        assert "wants a key: set OLLAMA_API_KEY" in top(host, "--once").stderr
        assert "refuses the key in OLLAMA_API_KEY" in top(host, "--once", OLLAMA_API_KEY="x").stderr
        assert "No model is in memory" in top(host, "--once", OLLAMA_API_KEY="k").stdout


def test_it_needs_a_terminal_or_an_option() -> None:
    assert "say --once or --json" in top("127.0.0.1:1").stderr


def ask(server: Running) -> None:
    options = {"num_predict": 4, "seed": 1}
    server.post("/api/generate", {"model": "helper", "prompt": "hello", "stream": False, "options": options})


def test_one_picture_of_a_server(models: Path) -> None:
    with running(Settings(address=SOMEWHERE), models) as server:
        ask(server)
        host = f"127.0.0.1:{server.port}"
        text = top(host, "--once").stdout
        assert "> helper:latest" in text
        assert "nobody asks" in text
        assert "\x1b" not in text
        (model,) = json.loads(top(host, "--json", "--once").stdout)["models"]
        assert model["generated_tokens"] == 4


def see(shown: Terminal, text: str) -> None:
    """Wait until a picture contains the text; Ctrl-L redraws all of it, not only the changes."""

    def drawn() -> str:
        return shown.text[begin:].replace("\r", "")  # a carriage return precedes the last column

    begin = len(shown.text)
    deadline = time.monotonic() + SECONDS
    while text not in drawn():
        assert time.monotonic() < deadline, drawn()
        begin = len(shown.text)
        shown.type("\x0c")
        shown.wait_until(lambda: any(end in drawn() for end in (text, "sorted by", "Trying")), text)
        time.sleep(0.05)


@pytest.mark.long
def test_keys_on_a_terminal(models: Path) -> None:
    with running(Settings(address=SOMEWHERE), models) as server:
        ask(server)
        with terminal("-m", "chaski", "top", OLLAMA_HOST=f"127.0.0.1:{server.port}") as shown:
            shown.wait_for("> helper:latest")
            for keys, text in (
                ("", "nobody asks"),
                ("c", "cells taken"),
                ("cs", "sorted by rate"),
                ("?", "choose a model"),
                ("?pjk\x1b[A\x1b[B\x1b[5~\x1b[6~", "paused"),
                ("p", "nobody asks"),
            ):
                shown.type(keys)
                see(shown, text)
            shown.type("q")
            assert shown.wait_for_end() == 0
    assert b"\x1b[?1049h" in shown.seen
    assert shown.seen.rindex(b"\x1b[?1049l") > shown.seen.rindex(b"helper")


@pytest.mark.long
def test_a_server_that_goes_and_comes_back() -> None:
    with ExitStack() as stack:
        with answering(200, json.dumps(figures(name="first")).encode()) as host:
            shown = stack.enter_context(terminal("-m", "chaski", "top", OLLAMA_HOST=host))
            shown.wait_for("> first")
        see(shown, "Trying again each second: could not connect")
        see(shown, "> first")
        with answering(200, json.dumps(figures(name="second")).encode(), int(host.rpartition(":")[2])):
            see(shown, "> second")
            shown.type("q")
            assert shown.wait_for_end() == 0
