"""The parts of tools/gpu_first_hour.sh run on the emulated device."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from benchmarks import gpu_first
from tests.cuda.emulated import NAME


@pytest.mark.parametrize(
    ("part", "told"),
    [
        pytest.param("bits", "logits of 40 tokens: the same bits", marks=pytest.mark.slow),
        pytest.param("micro", "an empty kernel, launched early", marks=pytest.mark.long),
        pytest.param("timeline", "step of 1 tokens", marks=pytest.mark.slow),
        pytest.param("variants", "a step with no early launches", marks=pytest.mark.slow),
    ],
)
def test_parts(part: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_first.main([part, "--device", NAME]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.slow
def test_other_bits_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = count()
    monkeypatch.setattr(
        gpu_first,
        "_tokens",
        lambda length: np.random.default_rng(next(seeds)).integers(3, 500, length).tolist(),
    )
    assert gpu_first.main(["bits", "--device", NAME]) == 1
    assert "logits of 40 tokens: DIFFERENT" in capsys.readouterr().out
