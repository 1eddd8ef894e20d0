"""The comparison of a checkpoint with transformers; needs torch and transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.families import checkpoint, expected
from tools import check_model

pytestmark = pytest.mark.oracle


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    known = expected("smollm3/untied")
    return checkpoint(tmp_path / "checkpoint", known["config"], known["tensors"], known["seed"])


def test_a_family_holds(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["check_model", str(folder), "--types", "Q8_0"])
    assert check_model.main() == 0
    output = capsys.readouterr().out
    assert "smollm3: " in output
    assert "32 of 32 are those of transformers" in output
    assert output.count("the same bits") == 4
