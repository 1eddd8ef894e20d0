"""Engines run in turns, and an interrupted record continues. The engines only print numbers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("gguf")

from benchmarks import turns
from benchmarks.engines import Engine, EngineError, Workload, speculation
from benchmarks.machine import Machine
from benchmarks.record import Record
from benchmarks.roofline import Limits
from benchmarks.turns import Deadline, run_in_turns

WHATS = ("prefill", "decode")


def engine(name: str, rate: float, **more: object) -> Engine:
    result = {
        "prefill_tokens_per_second": [rate / 2, rate],
        "decode_tokens_per_second": [rate],
        "load_seconds": 1,
        "first_logits_seconds": 2,
        "peak_rss_bytes": 3,
    } | more
    return Engine(name, (sys.executable, "-c", f"print({json.dumps(json.dumps(result))})"))


def standing(name: str) -> Engine:
    """Return an engine whose rates grow from 1, and whose first logits are the number of its process."""
    program = (
        "import json, os, sys\n"
        "for rate in range(1, 100):\n"
        "    values = {'decode_tokens_per_second': [rate], 'first_logits_seconds': os.getpid()}\n"
        "    print(json.dumps(values), flush=True)\n"
        "    if not sys.stdin.readline(): break"
    )
    return Engine(name, (sys.executable, "-c", program), stands=True)


def crashing(name: str) -> Engine:
    return Engine(name, (sys.executable, "-c", "raise SystemExit('no such file')"))


@pytest.fixture(autouse=True)
def _no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "measure", lambda threads: [Limits("any", threads, 1.0, 1.0, None, 1.0)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.write_bytes(b"any")
    return path


def new_record() -> Record:
    return Record("row", "file", 1, Workload(), "f16", Machine("cpu", "any", 2), "1", None, "date")


def order(record: Record) -> list[tuple[int, str]]:
    return [(run.round, run.engine) for run in record.runs]


class Cut:
    """A deadline that allows this many runs."""

    def __init__(self, runs: int) -> None:
        self.left = runs

    def allows(self, seconds: float) -> bool:
        self.left -= 1
        return self.left >= 0


def test_rounds_are_interleaved(model: Path) -> None:
    record, saved = new_record(), []
    engines = [engine("chaski", 100), engine("a", 50), engine("b", 70)]
    done = run_in_turns(record, model, engines, 2, WHATS, Deadline.in_minutes(None), lambda: saved.append(1))
    assert done
    assert order(record) == [(1, "chaski"), (1, "a"), (1, "b"), (2, "chaski"), (2, "a"), (2, "b")]
    assert len(record.limits) == 2
    assert len(saved) >= 6
    assert record.runs[0].values == {
        "prefill": 100,
        "decode": 100,
        "load": 1,
        "first_logits": 2,
        "peak_memory": 3,
    }


def test_what_was_cut_off_goes_on_beside_a_run_of_ours(model: Path) -> None:
    record = new_record()
    engines = [engine("chaski", 100), engine("a", 50), engine("b", 70)]
    assert not run_in_turns(record, model, engines, 1, WHATS, Cut(2), lambda: None)
    assert order(record) == [(1, "chaski"), (1, "a")]
    assert run_in_turns(record, model, engines, 1, WHATS, Deadline.in_minutes(None), lambda: None)
    assert order(record) == [(1, "chaski"), (1, "a"), (1, "chaski"), (1, "b")]
    assert run_in_turns(record, model, engines, 1, WHATS, Cut(0), lambda: None), "nothing is missing"


def test_slow_settings_and_crashes_are_left_out(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = new_record()
    engines = [engine("chaski", 100), engine("slow", 50), engine("fast", 90), crashing("broken")]
    assert run_in_turns(record, model, engines, 2, WHATS, Deadline.in_minutes(None), lambda: None)
    assert order(record)[3:] == [(2, "chaski"), (2, "fast")]
    assert record.left_out == {"slow": "below 0.6 of the best setting in round 1", "broken": "failed"}
    assert "broken ended with 1: no such file" in capsys.readouterr().err


def test_our_own_crash_ends_it(model: Path) -> None:
    with pytest.raises(EngineError, match="no such file"):
        run_in_turns(
            new_record(), model, [crashing("chaski")], 1, WHATS, Deadline.in_minutes(None), lambda: None
        )


def test_processes_that_measure_again_are_kept_until_the_end(model: Path) -> None:
    record = new_record()
    engines = [standing("chaski"), engine("a", 1)]
    assert run_in_turns(record, model, engines, 3, ["decode"], Deadline.in_minutes(None), lambda: None)
    runs = [run.values for run in record.runs if run.engine == "chaski"]
    assert [values["decode"] for values in runs] == [1, 2, 3]
    assert len({values["first_logits"] for values in runs}) == 1, "one process"
    assert not Path(f"/proc/{runs[0]['first_logits']}").exists()


def test_a_command_that_measures_two_ways(model: Path) -> None:
    both = engine("guesses", 80, rival={"decode_tokens_per_second": [40]})
    process = Engine(both.name, both.command, rival="plain").start(model, Workload())
    measured = process.result()
    process.close()
    assert measured["guesses"]["decode"] == 80
    assert measured["plain"] == {"decode": 40}
    assert "depth" not in speculation(0.5).takes


def test_an_interpreter_that_is_not_there(model: Path) -> None:
    with pytest.raises(EngineError, match="nowhere"):
        Engine("x", ("/nowhere/python",)).start(model, Workload())
