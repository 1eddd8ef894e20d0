"""Models that do not fit in memory run from their files: the same bits, and a warning."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.errors import ModelError
from chaski.ml.cpu import backend
from tests.backends import about_the_processor

pytestmark = about_the_processor

GUIDE = Path(chaski.__file__).parent / "models" / "guide.gguf"
IDS = list(range(40, 60))


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine has 2 MB in total; available memory stays real, as caches need some."""
    monkeypatch.setattr(backend, "total_memory", lambda: 2_000_000)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits(
    threads: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with chaski.load(GUIDE, threads=threads, context=64) as model:
        model.wait_loaded()
        assert "2.0 MB of memory in all: every batch reads them from the disk" in caplog.text
        assert model.memory().weights < 100_000
        found = [model.logits(ids) for ids in (IDS, IDS[:1], IDS)]
    monkeypatch.undo()
    caplog.clear()
    with chaski.load(GUIDE, threads=threads, context=64) as model:
        assert not caplog.records
        assert model.memory().weights > 2_000_000
        expected = [model.logits(ids) for ids in (IDS, IDS[:1], IDS)]
    assert all(map(np.array_equal, found, expected))


@pytest.mark.usefixtures("small_machine")
def test_show_tells() -> None:
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
