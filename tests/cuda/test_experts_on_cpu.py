"""Experts on the processor, and the rest of their layers on GPUs, give the bits of the processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import OptionError
from tests import families
from tests.cuda.emulated import NAME
from tests.cuda.test_layouts import answers, sizes
from tests.tiers import long_after

__all__ = ["sizes"]

LAYERS = 2


@pytest.fixture(scope="module")
def path() -> Path:
    return families.converted("olmoe/grouped")


@pytest.fixture(scope="module")
def expected(path: Path) -> list[Any]:
    return list(answers(path, backend="cpu")[1:])


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "devices"),
    long_after(
        2,
        [
            ({"n_cpu_moe": 1}, ["cpu", "cuda:0"]),
            ({"n_cpu_moe": 99, "num_gpu": 2, "main_gpu": 1}, ["cpu", "cuda:1"]),
            ({"n_cpu_moe": 0}, ["cuda:0"]),
            ({"n_cpu_moe": 99}, ["cpu", "cuda:0"]),
            ({"n_cpu_moe": 2, "tensor_split": [1, 0, 1]}, ["cpu", "cuda:0", "cuda:2"]),
        ],
    ),
)
def test_same_bits(
    path: Path, sizes: Sequence[int], expected: list[Any], options: dict[str, Any], devices: Sequence[str]
) -> None:
    held, *found = answers(path, backend=NAME, **options)
    assert held == devices
    assert found == expected


@pytest.mark.long
@pytest.mark.parametrize("name", ["deepseek2", "jamba"])
def test_same_bits_of_other_experts(name: str) -> None:
    path = families.converted(min(each for each in families.VARIANTS if each.startswith(f"{name}/")))
    assert answers(path, backend=NAME, n_cpu_moe=99)[1:] == answers(path, backend="cpu")[1:]


@pytest.mark.long
def test_as_few_experts_as_needed_are_on_the_processor(
    path: Path, sizes: list[int], expected: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    size: dict[str, Any] = {"context": 128, "parallel": 2, "num_batch": 8, "prompt_cache": False}
    del sizes[1:]

    def on(device: str, **options: Any) -> int:
        with chaski.load(path, **size, backend=NAME, **options) as llm:
            memory = llm.memory()
            return memory.on(device).total if device != "cpu" else memory.on(device).weights

    whole, least = on("cuda:0"), on("cuda:0", n_cpu_moe=99)
    assert least < whole
    held = []
    for room in (whole - 1, least):
        sizes[0] = room
        held.append(on("cpu"))
        assert list(answers(path, backend=NAME)[1:]) == expected
    assert 0 < held[0] < held[1]
    assert f"the experts of 1 of {LAYERS} layers of model.gguf are on the processor" in caplog.text
    sizes[0] = least - 1  # now whole layers, too
    assert on("cpu") > held[1]
    assert list(answers(path, backend=NAME)[1:]) == expected


def test_a_number_below_zero(path: Path) -> None:
    with pytest.raises(OptionError, match="n_cpu_moe = -1 must be at least 0"):
        chaski.load(path, backend=NAME, n_cpu_moe=-1)
