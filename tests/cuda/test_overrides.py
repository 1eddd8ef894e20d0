"""Tensors that the user places by their names: the bits of the processor, and errors for what cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import OptionError
from chaski.ml.backend import HOST, Override
from chaski.runner.loading.gpus import read_overrides
from tests import families
from tests.cuda.emulated import NAME
from tests.cuda.test_layouts import answers, sizes
from tests.tiers import long_after

__all__ = ["sizes"]


@pytest.fixture(scope="module")
def path() -> Path:
    return families.converted("olmoe/grouped")


@pytest.fixture(scope="module")
def expected(path: Path) -> list[Any]:
    return list(answers(path, backend="cpu")[1:])


@pytest.mark.parametrize(
    ("options", "devices"),
    long_after(
        3,
        [
            ({"cpu_moe": True}, ["cpu", "cuda:0"]),
            ({"override_tensor": r"blk\.(0|1)\.ffn_.*_exps=CPU"}, ["cpu", "cuda:0"]),
            ({"override_tensor": r"blk\.1\.attn_output=CPU,ffn_.*_exps=CUDA1"}, ["cpu", "cuda:1"]),
            ({"override_tensor": "exps=CUDA1", "main_gpu": 0}, ["cuda:0", "cuda:1"]),
            ({"override_tensor": ["attn_q=CPU", "blk.0.ffn_down_exps=CPU"]}, ["cpu", "cuda:0"]),
            ({"override_tensor": "output=CPU", "main_gpu": 1}, ["cpu", "cuda:1"]),
            ({"override_tensor": "_norm=CUDA2"}, ["cuda:2"]),
            ({"override_tensor": "exps=CPU", "num_gpu": 2}, ["cpu", "cuda:0"]),
        ],
    ),
)
def test_same_bits(
    path: Path, sizes: Sequence[int], expected: list[Any], options: dict[str, Any], devices: Sequence[str]
) -> None:
    held, *found = answers(path, backend=NAME, **options)
    assert held == devices
    assert found == expected


def test_experts_that_were_named_are_on_the_processor(path: Path, sizes: Sequence[int]) -> None:
    def weights(**options: Any) -> dict[str, int]:
        with chaski.load(path, context=128, prompt_cache=False, backend=NAME, **options) as llm:
            return {each.device: each.weights for each in llm.memory().devices}

    by_number = weights(n_cpu_moe=1)
    assert weights(override_tensor=r"blk\.0\.ffn_(up|down|gate)_exps=CPU") == by_number
    assert weights(cpu_moe=True) == weights(n_cpu_moe=999)
    assert weights(override_tensor=r"blk\.0\.ffn_down_exps=CPU")["cpu"] < by_number["cpu"]


def test_how_overrides_are_written() -> None:
    assert read_overrides(r"a\.b=CPU, c=CUDA1") == (Override(r"a\.b", HOST), Override("c", "cuda:1"))
    assert read_overrides(["a=CPU,b=CPU", "c=d=CUDA0"]) == (
        Override("a", HOST),
        Override("b", HOST),
        Override("c=d", "cuda:0"),
    )
    assert read_overrides("") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exps", "must be PATTERN=DEVICE"),
        ("=CPU", "must be PATTERN=DEVICE"),
        ("exps=Metal", "must be PATTERN=DEVICE, where DEVICE is CPU, or CUDA"),
        ("(exps=CPU", "is not a regular expression"),
    ],
)
def test_faulty_overrides(path: Path, text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        chaski.load(path, override_tensor=text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"override_tensor": "exps=CUDA7"}, "CUDA7, which is not one of the GPUs here: 0, 1, 2"),
        ({"override_tensor": "nonsense=CPU"}, "'nonsense' matches no tensor of the model"),
        ({"cpu_moe": True, "n_cpu_moe": 1}, "set one of them"),
        ({"override_tensor": 7}, "must be a text or a list of texts"),
    ],
)
def test_what_an_override_cannot_do(
    path: Path, sizes: Sequence[int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        chaski.load(path, backend=NAME, **options)


def test_an_override_to_a_gpu_needs_one(path: Path) -> None:
    with pytest.raises(OptionError, match="CUDA0, but no GPU computes this model"):
        chaski.load(path, backend="cpu", override_tensor="exps=CUDA0")
    chaski.load(path, backend="cpu", override_tensor="exps=CPU").close()


@pytest.mark.parametrize(
    ("options", "name"), [({"n_cpu_moe": 2}, "n_cpu_moe"), ({"gpu_experts": 2}, "gpu_experts")]
)
def test_places_of_experts_without_a_gpu_change_nothing(
    path: Path, options: dict[str, Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    chaski.load(path, backend="cpu", **options).close()
    assert f"{name} changes nothing, because no GPU computes this model" in caplog.text
