"""Dry runs of the GPU benchmark: on the processor without some packages, and on the emulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import _told
from benchmarks.gpu_results import SINGLE, Results
from tests.cuda.emulated import NAME, STARTUP

ROOT = Path(__file__).parents[2]
ALONE = ["--shape", "llama-tiny", "--quick", "--repeat", "2", "--only", SINGLE]
# Packages that a machine with a GPU may lack.
LACKING = """
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"gguf", "regex", "matplotlib", "llguidance", "starlette", "uvicorn",
                                      "httpcore2", "cryptography", "prompt_toolkit", "python_multipart"}:
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, Lacking())
"""
H200 = [{"name": "device", "model": "H200"}, {"copy": 4e12}, {"products": 4e14}]


def run(folder: Path, path: str, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Run the command with models and results in a folder; return its output and its results."""
    command = [sys.executable, "-m", "benchmarks.gpu", *ALONE, "--files", str(folder), "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), path))}
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "results.json").read_text())


@pytest.mark.long
def test_the_processor_where_packages_are_missing(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    told, found = run(tmp_path, str(tmp_path), "--device", "cpu", "--threads", "1", "2")
    assert [row["threads"] for row in found["rows"]] == [2, 1]
    assert all(len(row["prefill"]) == len(row["decode"]) == 2 for row in found["rows"])
    assert "| llama-tiny | 1 sequence | 1 |" in told
    assert "matplotlib is not installed" in told
    assert found["failed"] == found["left_out"] == []


@pytest.mark.slow
def test_the_emulated_device(tmp_path: Path) -> None:
    told, found = run(tmp_path, STARTUP, "--device", NAME, "--kernels", "2")
    (step,) = found["kernels"]
    assert len(step["kernels"]) == 2
    assert step["kernels"][0]["kernel"] in told
    assert "<svg" in (tmp_path / "decode.svg").read_text()
    assert found["load_seconds"][0]["first_logits_seconds"] > 0


def test_what_there_is_no_time_for_is_named() -> None:
    task = {"measure": "device", "name": "a device", "device": "cpu", "threads": [1]}
    assert list(_told(task, 0)) == [{"name": "a device", "left_out": "no time was left"}]
    *_, last = _told(task, 0.05)
    assert last["left_out"] == "the time was over before all of it was measured"


def test_what_fails_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    (told,) = _told({"measure": "device", "name": "a device", "device": "nothing", "threads": []}, 60)
    assert "nothing" in told["failed"]


@pytest.mark.long
def test_goals_are_met_or_missed(tmp_path: Path) -> None:
    results = Results(tmp_path, "Q4_K_M", H200)
    own = {"shape": "llama-3.1-8b", "threads": None}
    rates = {"prefill": 12000.0, "decode": 300.0}
    results.take({**own, "work": SINGLE, "numbers": [512, 128, 0, 1], **rates})
    results.take({**own, "work": "prompt of 2,048", "numbers": [2048, 32, 0, 1], **rates})
    results.take({**own, "work": "64 sequences", "numbers": [128, 64, 0, 64], **rates, "decode": 5400.0})
    table = list(results.table())
    # 4.6 GB of weights 300 times a second, and 7 billion multiply-adds for each token of a prompt; 64
    # histories of 160 tokens have 1.4 GB.
    assert "| 300.0 | 35% | 70% of a copy: missed |" in table[2]
    assert "| 12,000.0 | 21% |" in table[3]
    assert "50% of products: missed" in table[3]
    assert "| 5,400.0 | 13% | 5,300 tokens/s: met |" in table[4]
    results.draw()
    assert {path.name for path in tmp_path.iterdir()} == {"results.json", "prefill.svg", "decode.svg"}
