"""Models that do not fit in memory run from their files: the same bits, and a warning."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import chaski
from chaski import _native
from chaski.cli.main import chaski_command
from chaski.errors import ModelError, OutOfMemoryError
from chaski.formats.gguf import TensorInfo
from chaski.formats.quant import QuantType
from chaski.ml.cpu import backend, partly_loaded
from chaski.ml.cpu.partly_loaded import PartlyLoaded, spread
from chaski.ml.cpu.weight_files import StoredMatrix
from chaski.ml.graph import Weight
from tests.backends import about_the_processor

pytestmark = about_the_processor

GUIDE = Path(chaski.__file__).parent / "models" / "guide.gguf"
IDS = list(range(40, 60))
FILL = PartlyLoaded.fill


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has 2 MB in total; available memory stays real, as caches need some."""
    monkeypatch.setattr(backend, "total_memory", lambda: 2_000_000)
    keep(0, monkeypatch)


def keep(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let that many bytes of matrices be in memory."""

    def fill(partly: PartlyLoaded, _: int) -> Sequence[StoredMatrix]:
        return FILL(partly, room - partly.held_bytes)

    monkeypatch.setattr(PartlyLoaded, "fill", fill)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(("threads", "room"), [(1, 0), (2, 900_000)])
def test_the_same_bits(
    threads: int, room: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(room, monkeypatch)
    with chaski.load(GUIDE, threads=threads, context=64) as model:
        model.wait_loaded()
        memory = model.memory().on("cpu")
        assert room * 0.8 < memory.weights < room + 100_000
        read = f"every batch reads {memory.in_files / 1e6:.1f} MB of them from the disk"
        assert f"2.0 MB of memory in all: {read}" in caplog.text
        found = [model.logits(ids) for ids in (IDS, IDS[:1], IDS)]
    monkeypatch.undo()
    caplog.clear()
    with chaski.load(GUIDE, threads=threads, context=64) as model:
        assert not caplog.records
        assert model.memory().weights > 2_000_000
        expected = [model.logits(ids) for ids in (IDS, IDS[:1], IDS)]
    assert all(map(np.array_equal, found, expected))


@pytest.mark.usefixtures("small_machine")
def test_memory_is_given_back_and_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [0]
    monkeypatch.setattr(partly_loaded, "_LOOK", 0.0)
    monkeypatch.setattr(partly_loaded, "_spare", lambda: 100_000)
    monkeypatch.setattr(partly_loaded, "available_memory", lambda: free[0])
    keep(10_000_000, monkeypatch)
    held = []
    with chaski.load(GUIDE, threads=2, context=64) as model:
        expected = model.logits(IDS)
        for free[0] in (0, 90_000, 10_000, 0, 150_000, 10_000_000, 0, 0):
            assert np.array_equal(model.logits(IDS), expected)
            held.append(model.memory().weights)
    assert held[0] > held[2] > held[3] == held[4] < held[5] > held[7]
    assert held[1] == held[0]


@pytest.mark.long
@pytest.mark.usefixtures("small_machine")
def test_a_draft_proposes_while_memory_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of two models are launched one after the other before the first one has been waited for."""
    random = np.random.default_rng(5)
    monkeypatch.setattr(partly_loaded, "_LOOK", 0.0)
    monkeypatch.setattr(partly_loaded, "_spare", lambda: 100_000)
    monkeypatch.setattr(partly_loaded, "available_memory", lambda: int(random.choice([0, 10**7])))
    keep(10_000_000, monkeypatch)
    settings = {"num_predict": 100, "temperature": 0, "ignore_eos": True}
    with chaski.load(GUIDE, draft=GUIDE, threads=2, context=256) as model:
        found = [model.generate("threads", **settings).token_ids for _ in range(5)]
    monkeypatch.undo()
    with chaski.load(GUIDE, threads=2, context=256) as model:
        expected = model.generate("threads", **settings).token_ids
    assert found == [expected] * 5


def test_weights_come_into_memory_evenly() -> None:
    def stored(name: str, num_bytes: int) -> tuple[Weight, TensorInfo]:
        no_data = np.empty(0, np.uint8)
        info = TensorInfo(name, (1, num_bytes // 4), QuantType.F32, Path(), 0, num_bytes, no_data)
        return Weight((1, 1), name=name), info

    small = [stored(f"blk.{number // 4}.{number % 4}", 1000) for number in range(64)]
    first, *names = (pair[0].name for pair in spread([*small, stored("output.weight", 1 << 30)]))
    assert first == "output.weight", "while it is computed, the disk would wait"
    assert sorted(int(name.split(".")[1]) for name in names[:16]) == list(range(16))
    assert spread([]) == []


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("threads", [1, 3])
def test_passes_that_leave_matrices_out(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream reads what a pass needs next, but the next pass is another one: some need no output."""
    random = np.random.default_rng(threads)
    settings = {"num_predict": 3, "temperature": 0, "ignore_eos": True}
    calls: list[Callable[[chaski.LLM], object]] = [
        lambda model: model.logits(IDS).tobytes(),
        lambda model: model.logits(IDS[:1]).tobytes(),
        lambda model: model.generate("one two three four " * 2, **settings).token_ids,
        lambda model: next(iter(model.stream("text", **settings))).text,
    ]
    order = random.integers(len(calls), size=30)
    sizes: dict[str, Any] = {"threads": threads, "context": 64, "num_batch": 4, "prompt_cache": False}
    keep(300_000, monkeypatch)
    with chaski.load(GUIDE, **sizes) as model:
        found = [calls[number](model) for number in order]
    monkeypatch.undo()
    with chaski.load(GUIDE, **sizes) as model:
        assert found == [calls[number](model) for number in order]


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("error", [RuntimeError("no thread"), MemoryError()])
def test_memory_or_threads_that_the_system_refuses(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def __init__(self, threads: int) -> None:
            assert threads == 1

        def start(self, *_: object) -> None:
            raise error

        def stop(self) -> None:
            pass

    monkeypatch.setattr(_native, "WeightStream", Refused)
    with pytest.raises(OutOfMemoryError, match=r"weights cannot be read .*: no (thread|memory)"):
        chaski.load(GUIDE, threads=1, context=64)


@pytest.mark.usefixtures("small_machine")
def test_show_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.ml.cpu.partly_loaded.spare_memory", lambda: 1 << 60)
    output = CliRunner().invoke(chaski_command, ["show", str(GUIDE), "--memory"]).output
    row = next(line for line in output.splitlines() if "too large, read from the file" in line)
    assert row.endswith("MB")


@pytest.mark.usefixtures("small_machine")
def test_a_file_that_shrinks_is_an_error_at_any_time(tmp_path: Path) -> None:
    path = Path(shutil.copy(GUIDE, tmp_path / "shrinking.gguf"))
    with chaski.load(path, threads=1, context=64) as model:
        model.logits(IDS)
        os.truncate(path, 1_000_000)
        with pytest.raises(ModelError, match=r"weights of .*shrinking\.gguf cannot be read"):
            model.logits(IDS)
