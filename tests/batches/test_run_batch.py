"""Batches are answered completely, whatever interrupts them: no result is lost or repeated."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chaski.batches.lines import BatchLine
from chaski.batches.results import Results
from chaski.batches.run import Ask, Reply, Tokens, run_batch
from chaski.errors import ChaskiError, FormatError, StoreError

LINES = [BatchLine(number, f"id-{number}", "/v1/completions", {"n": number}) for number in range(40)]


async def answer(url: str, body: Mapping[str, Any]) -> Reply:
    await asyncio.sleep(0)
    usage = {"prompt_tokens": 2, "completion_tokens": body["n"]}
    return Reply(200, {"echo": body["n"], "usage": usage}, f"answer-{body['n']}")


def run(path: Path, ask: Ask = answer, in_flight: int = 4, retries_failed: bool = False) -> Tokens:
    with Results.open(path, retries_failed) as results:
        return asyncio.run(run_batch(LINES, ask, results, in_flight))


def echoes(path: Path) -> list[tuple[str, int]]:
    """Return ids and contents of all results, sorted."""
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    return sorted((each["custom_id"], each["response"]["body"].get("echo", -1)) for each in found)


ALL = sorted((line.custom_id, line.number) for line in LINES)


def test_results_have_the_form_of_openai(tmp_path: Path) -> None:
    tokens = run(tmp_path / "results.jsonl", in_flight=1)
    first = json.loads((tmp_path / "results.jsonl").read_bytes().splitlines()[0])
    body = {"echo": 0, "usage": {"prompt_tokens": 2, "completion_tokens": 0}}
    response = {"status_code": 200, "request_id": "answer-0", "body": body}
    assert first == {
        "id": LINES[0].request_id,
        "custom_id": "id-0",
        "response": response,
        "error": None,
    }
    assert (tokens.prompts, tokens.answers) == (80, sum(range(40)))


@pytest.mark.parametrize("cut", [0, 1, 30, 200, 1500, 4000])
def test_a_file_that_was_cut_anywhere_is_gone_on_with(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "results.jsonl"
    run(path)
    path.write_bytes(path.read_bytes()[:cut])
    asked = []

    async def note(url: str, body: Mapping[str, Any]) -> Reply:
        asked.append(body["n"])
        return await answer(url, body)

    whole = path.read_bytes().count(b"\n")
    run(path, note)
    assert len(asked) == len(set(asked)) == 40 - whole
    assert echoes(path) == ALL


def test_so_many_are_asked_at_a_time(tmp_path: Path) -> None:
    now = most = 0
    all_came = asyncio.Event()

    async def count(url: str, body: Mapping[str, Any]) -> Reply:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 7:
            all_came.set()
        async with asyncio.timeout(30):
            await all_came.wait()
        await asyncio.sleep(0.001)
        now -= 1
        return await answer(url, body)

    run(tmp_path / "results.jsonl", count, in_flight=7)
    assert most == 7


def test_who_is_busy_is_asked_again(tmp_path: Path) -> None:
    refusals = {3: 2, 5: 9}

    async def busy(url: str, body: Mapping[str, Any]) -> Reply:
        if refusals.get(body["n"], 0):
            refusals[body["n"]] -= 1
            return Reply(503 if body["n"] == 3 else 429, {"error": "busy"}, retry_after=0.001)
        return await answer(url, body)

    run(tmp_path / "results.jsonl", busy)
    assert echoes(tmp_path / "results.jsonl") == ALL


def test_a_crash_is_tried_again_and_then_it_is_a_result(tmp_path: Path) -> None:
    path, tries = tmp_path / "results.jsonl", []

    async def crash(url: str, body: Mapping[str, Any]) -> Reply:
        if body["n"] in (2, 7):
            tries.append(body["n"])
            if body["n"] == 2 or tries.count(7) == 1:
                return Reply(500, {"error": {"message": "crashed"}}, retry_after=0.001)
        return await answer(url, body)

    run(path, crash)
    assert sorted(tries) == [2, 2, 2, 7, 7]
    assert [found for found in echoes(path) if found[1] == -1] == [("id-2", -1)]
    run(path)  # errors are results
    assert ("id-2", -1) in echoes(path)
    run(path, retries_failed=True)
    assert echoes(path) == ALL
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_where_all_fails_the_rest_is_not_asked(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"

    async def fail(url: str, body: Mapping[str, Any]) -> Reply:
        return Reply(500, {"error": {"message": "no memory"}}, retry_after=0.0001)

    with pytest.raises(ChaskiError, match=r"16 requests in a row have failed.*no memory"):
        run(path, fail)
    assert len(echoes(path)) < 40
    run(path, retries_failed=True)
    assert echoes(path) == ALL


def test_where_nobody_answers_what_was_done_stays(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"

    async def leave(url: str, body: Mapping[str, Any]) -> Reply:
        if body["n"] == 20:
            raise ChaskiError("could not connect")
        return await answer(url, body)

    with pytest.raises(ChaskiError, match="could not connect"):
        run(path, leave)
    done = echoes(path)
    assert 10 < len(done) < 40
    run(path)
    assert echoes(path) == ALL


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    with Results.open(path), pytest.raises(StoreError, match="another process writes"), Results.open(path):
        pass


@pytest.mark.parametrize(
    "text", ["words\n", "[1]\n", '{"id": 1}\n', '{"id": "x", "custom_id": "y", "response": null}\n']
)
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    for retries_failed in (False, True):
        with pytest.raises(FormatError, match="line 1: no result of a batch"):
            run(path, retries_failed=retries_failed)
    assert path.read_text() == text


def test_files_are_read_and_written_in_given_threads(tmp_path: Path) -> None:
    names: set[str] = set()

    def lines() -> Iterator[BatchLine]:
        for line in LINES:
            names.add(threading.current_thread().name.partition("_")[0])
            yield line

    with ThreadPoolExecutor(2, "own") as threads, Results.open(tmp_path / "results") as results:
        asyncio.run(run_batch(lines(), answer, results, 4, threads=threads))
    assert names == {"own"}
    assert echoes(tmp_path / "results") == ALL
