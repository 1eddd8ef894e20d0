"""The benchmark of models larger than memory: its worker inside of a control group, and its table."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import larger_than_memory, make_models
from benchmarks.control_group import drop_cached, limited
from benchmarks.engines import CHASKI

_LIMIT = 400 << 20


def test_a_worker_measures_within_its_group(tmp_path: Path) -> None:
    path = make_models.make("llama-tiny", "Q8_0", tmp_path)
    drop_cached(path)
    worker = [sys.executable, "-m", "benchmarks.limited_worker", "chaski", str(path)]
    sizes = ["--prompt", "16", "--generate", "4", "--batch", "2", "--repeat", "2"]
    with ExitStack() as stack:
        try:
            group = stack.enter_context(limited(_LIMIT))
        except SystemExit as error:
            pytest.skip(str(error))
        done = subprocess.run(group.running(worker + sizes), capture_output=True, text=True, check=True)
        seen = subprocess.run(
            group.running(
                [sys.executable, "-c", "from chaski.ml import limits; print(limits.memory_limit())"]
            ),
            capture_output=True,
            text=True,
            check=True,
        )
    assert int(seen.stdout) == _LIMIT
    found = json.loads(done.stdout)
    for name in ("prefill_tokens_per_second", "decode_tokens_per_second", "seconds"):
        assert len(found[name]) == 2
        assert min(found[name]) > 0
    assert len(found["read_bytes"]) == 2


def test_the_table_compares_turns(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(3_000_000))
    row = next(larger_than_memory._rows())
    turn = larger_than_memory._Turn
    theirs = [turn(2.0, 2_000_000_000, 5e8, 1e9), turn(2.0, 2_000_000_000, 5e8, 1e9)]
    ours = [turn(8.0, 1_000_000_000, 9e8, 1e9), turn(4.0, 1_000_000_000, 9e8, 1e9)]
    lines = list(larger_than_memory._table(row, path, {CHASKI: ours, "llama.cpp, mapped": theirs}))
    assert "| chaski | 6.00 | 1.00 | 0.90 | 90% |" in lines
    assert "| llama.cpp, mapped | 2.00 | 2.00 | 0.50 | 50% |" in lines
    assert "**3.00** times llama.cpp (turns: 4.00, 2.00)." in lines
    failed = list(larger_than_memory._table(row, path, {CHASKI: ours, "llama.cpp, mapped": []}))
    assert "| llama.cpp, mapped | failed | | | |" in failed
