"""`chaski bench --plan`: its tables, its picture, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command
from chaski.ml import performance_model
from chaski.ml.performance_model import Batch, Machine, Prediction, ThreadRates
from chaski.ml.trace import Column, TracedRun, TracedStep
from chaski.runner import plan_report

LAYERS = 2
MACHINE = Machine(2, {n: ThreadRates(n * 1e10, float(n), 1e-7, 3e-7 * n) for n in (1, 2)}, 1e-11)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has two processors."""
    monkeypatch.setattr(plan_report, "measure_machine", lambda *_: MACHINE)
    monkeypatch.setattr(plan_report, "physical_cores", lambda: 2)


def plan(path: Path, *options: str) -> str:
    small = ("--prompt", "20", "--generate", "6", "--repeat", "2", "--threads", "2")
    result = CliRunner().invoke(chaski_command, ["bench", str(path), "--plan", *small, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_adds_up(tiny_llama: Path) -> None:
    report: dict[str, Any] = json.loads(plan(tiny_llama, "--json", "--bandwidth", "100", "--nodes", "2"))
    assert report["assumed"] == {"node_bandwidth": 1e11, "nodes": 2}
    assert report["machine"]["processors"] == 2
    for name, tokens in (("prefill", 20), ("decode", 1)):
        stage = report[name]
        assert stage["tokens"] == tokens
        assert list(stage["measured"]) == ["1", "2"]
        assert list(stage["predicted"]) == ["1", "2", "8", "16", "64", "128"]
        assert list(stage["saturated"]) == ["8", "16", "64", "128"]
        for count, seconds in stage["predicted"].items():
            parts = sum(step["seconds"][count] for step in stage["steps"])
            parts += stage["waiting"][count] + stage["python"][count]
            assert parts == pytest.approx(seconds)
            assert 0 < seconds < 10
        kinds = {(step["operation"], step["weights"]): step for step in stage["steps"]}
        operations = {operation for operation, _ in kinds}
        assert {"embedding", "rms_norm", "matmul", "rope", "store", "attention", "lane_maxima"} <= operations
        assert sum(step["count"] for step in stage["steps"] if step["operation"] == "attention") == LAYERS


def test_a_table_for_people(tiny_llama: Path) -> None:
    table = plan(tiny_llama)
    lines = [line.split() for line in table.splitlines()]
    assert lines[0] == ["this", "machine"]
    for first in ("prefill,", "decode,"):
        begin = next(index for index, line in enumerate(lines) if line[:1] == [first])
        names = [line[0] for line in lines[begin + 1 : begin + 40] if line]
        assert names.index("waiting") < names.index("Python") < names.index("predicted")
        header = lines[begin + 1]
        assert header[-6:] == ["1", "2", "8", "16", "64", "128"]
        end = next(index for index in range(begin, len(lines)) if not lines[index])
        rows = {line[0]: line for line in lines[begin:end]}
        assert len(rows["measured"]) == len(rows["error"]) == 1 + 2
        assert len(rows["predicted"]) == 1 + 6
        assert len(rows["no"]) == 3 + 4  # no more memory
    assert max(map(len, table.splitlines())) <= 110
    assert "Figures for more than 2 threads are predictions" in table
    words = "memory gives each thread 10.0 GB/s or, in the last line, at most 20.0 GB/s"
    assert words in " ".join(table.split())


def test_each_number_of_threads_has_the_memory_of_its_own_runs(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is measured after the run on one thread, and before and after the run on two."""
    speeds = iter([10e9, 20e9, 40e9])

    def measure(*_: object) -> Machine:
        speed = next(speeds)
        return Machine(2, {n: ThreadRates(n * speed, float(n), 1e-7, 3e-7 * n) for n in (1, 2)}, 1e-11)

    found: dict[int, float] = {}

    def predict(batch: Batch, machine: Machine, threads: int, *rest: Any) -> Prediction:
        found[threads] = machine.rates[1].bandwidth
        return performance_model.predict(batch, machine, threads, *rest)

    monkeypatch.setattr(plan_report, "measure_machine", measure)
    monkeypatch.setattr(plan_report, "predict", predict)
    report = json.loads(plan(tiny_llama, "--json"))
    assert next(speeds, None) is None
    assert (found[1], found[2], found[8]) == (10e9, 30e9, 30e9)
    assert report["prefill"]["predicted"]["2"] > 0


def test_an_assumed_bandwidth_is_said(tiny_llama: Path) -> None:
    table = plan(tiny_llama, "--bandwidth", "150", "--nodes", "2")
    assert "2 memory node(s) give 150.0 GB/s each" in " ".join(table.split())
    assert "no more memory" not in table


def test_a_picture(tiny_llama: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.svg"
    plan(tiny_llama, "--picture", str(target))
    root = ElementTree.parse(target).getroot()
    name = "{http://www.w3.org/2000/svg}"
    words = [element.text or "" for element in root.iter(f"{name}text")]
    assert words[0] == "prefill, 20 token(s) a batch"
    assert "decode, 1 token(s) a batch" in words
    assert words.count("thread 0") == 4  # measured on two threads and predicted for eight, twice
    assert words.count("thread 7") == 2
    assert all(float(words.count(f"{count} thread(s)")) == 2 for count in (1, 2, 8, 16, 64, 128))
    assert all(path.get("d") for path in root.iter(f"{name}path"))


def test_bars_that_touch_are_drawn_as_one() -> None:
    from chaski.cli.plan_picture import _joined

    bars = [(0.0, 1.0, 0), (1.01, 2.0, 0), (1.0, 3.0, 1), (2.5, 3.0, 0)]
    assert sorted(_joined(bars, 0.1)) == [(0.0, 2.0, 0), (1.0, 3.0, 1), (2.5, 3.0, 0)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--picture", "x.svg"), "--picture needs --plan"),
        (("--bandwidth", "10"), "--bandwidth needs --plan"),
        (("--nodes", "2"), "--nodes needs --plan"),
        (("--plan", "--nodes", "2"), "--nodes needs --bandwidth"),
        (("--plan", "--nodes", "0", "--bandwidth", "10"), "0 is not in the range x>=1"),
        (("--plan", "--bandwidth", "0"), "0.0 is not in the range x>0"),
        (("--plan", "--generate", "1"), "--plan needs two tokens to decode"),
        (("--plan", "--backend", "reference"), "--plan works with --backend cpu only"),
        (("--plan", "--picture", "nowhere/x.svg"), "folder nowhere does not exist"),
        (("--plan", "--threads", "0"), "'--threads': 0 is not in the range x>=1"),
    ],
)
def test_what_is_refused(tiny_llama: Path, options: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(chaski_command, ["bench", str(tiny_llama), *options])
    assert result.exit_code != 0
    assert message in " ".join(f"{result.output} {result.exception}".split())


def test_stages_are_told_apart() -> None:
    steps: list[Any] = [TracedStep("matmul", weight_bytes=10)]
    draft: list[Any] = [TracedStep("matmul", weight_bytes=2)]
    pieces = np.zeros((0, len(Column)), np.int64)

    def run(of: list[Any], tokens: int, history: int, launched: int, took: int) -> TracedRun:
        sizes = {"tokens": tokens, "history": history}
        return TracedRun(of, sizes, launched, launched, launched + took, pieces)

    runs = [run(steps, 1, 1, 0, 7)]
    for begin in (1_000_000, 2_000_000):
        runs += [run(steps, 64, 64, begin, 500), run(steps, 64, 128, begin + 1_000, begin // 1000)]
        runs += [run(draft, 64, 999, begin + 3_000, 1)]
        runs += [run(steps, 1, 129 + i, begin + 5_000 + 300 * i, 100) for i in range(4)]
    found = plan_report.stages(runs, 1)
    assert [one.sizes["history"] for one in found["prefill"].runs] == [128]
    assert found["prefill"].seconds == pytest.approx(2000e-9)
    assert found["decode"].seconds == pytest.approx(300e-9)
    assert found["decode"].after == pytest.approx(200e-9)
