"""Single experts on a GPU, which move while requests run, give the bits of the processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import chaski
from chaski.errors import ModelError, OptionError
from chaski.ml.cuda.backend import CUDABackend
from chaski.ml.sharded import expert_tiers
from chaski.ml.sharded.backend import ShardedBackend
from chaski.ml.sharded.expert_tiers import ExpertTiers
from tests import families
from tests.cuda.emulated import NAME
from tests.tiers import long_after

DATA = Path(__file__).parents[1] / "data" / "architectures"
SIZE: dict[str, Any] = {"context": 128, "parallel": 3, "prompt_cache": False}
PROMPTS = [[7, 9, 30, 4] * 9, [5, 5, 8], [11, 40, 6, 23, 31, 8, 9]]

Answers = Sequence[Any]


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let experts move after every token, however little that saves."""
    monkeypatch.setattr(expert_tiers, "_INTERVAL", 1)
    monkeypatch.setattr(expert_tiers, "_WORTH", 0.0)


def path_of(name: str) -> Path:
    """Return a file of the architectures, or a converted model of a family."""
    if (path := DATA / f"{name}.gguf").exists():
        return path
    return families.converted(min(each for each in families.VARIANTS if each.startswith(f"{name}/")))


def answers(path: Path, num_batch: int, **options: Any) -> tuple[Answers, chaski.LLM]:
    """Return logits of a prompt, and answers to several prompts together."""
    with chaski.load(path, **SIZE, num_batch=num_batch, **options) as llm:
        found: list[Any] = [llm.logits(PROMPTS[0] * 2).tobytes()]
        for seed in range(2):
            many = llm.generate_many(PROMPTS, num_predict=8, temperature=1, seed=seed, logprobs=True)
            found += [(each.token_ids, each.logprobs) for each in many]
        return found, llm


def tiers_of(llm: chaski.LLM) -> ExpertTiers:
    backend = llm._backend
    assert isinstance(backend, ShardedBackend)
    assert backend._tiers is not None
    return backend._tiers


@pytest.mark.parametrize(
    ("name", "slots", "num_batch"),
    long_after(
        1,
        [
            ("qwen3moe", 1, 16),
            ("qwen3moe", 3, 512),
            ("gpt-oss", 2, 16),
            ("gpt-oss-mxfp4", 2, 16),
            ("deepseek2", 1, 16),
            ("llama4", 1, 3),
            ("granitemoe", 2, 16),
            ("gemma4-moe", 2, 16),
            ("qwen35moe", 99, 16),
        ],
    ),
)
def test_same_bits(name: str, slots: int, num_batch: int, moving: None) -> None:
    expected, _ = answers(path_of(name), num_batch, backend="cpu")
    moves: list[int] = []
    put = CUDABackend.put_experts

    def counted(backend: CUDABackend, contents: Sequence[Any]) -> None:
        moves.append(len(contents))
        put(backend, contents)

    with patch.object(CUDABackend, "put_experts", counted):
        found, llm = answers(path_of(name), num_batch, backend=NAME, gpu_experts=slots)
    assert found == expected
    for layer in tiers_of(llm).layers:
        assert len(set(layer.owners.tolist())) == layer.slots == min(slots, layer.experts - 1)
    assert sum(moves) > 0


@pytest.mark.long
def test_what_tiers_have_done_is_counted(moving: None) -> None:
    with chaski.load(path_of("qwen3moe"), **SIZE, backend=NAME, gpu_experts=2) as llm:
        llm.logits(PROMPTS[0])
        for each in llm.memory().experts:
            assert 0 < each.gpu_hits < each.requests == each.gpu_hits + each.hits
            assert (each.gpu_slots, each.bytes_read) == (6, 0)
            assert each.slots == each.matrices > each.gpu_slots


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"n_cpu_moe": 1}, [0]),
        ({"num_gpu": 2}, [1]),  # all of the first layer is on the processor
        ({"tensor_split": [1, 0, 1]}, [0, 1]),  # each on a GPU of its own
    ],
)
def test_experts_of_some_layers(
    moving: None, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], layers: Sequence[int]
) -> None:
    monkeypatch.setattr("tests.cuda.emulated.gpu.SIZES", [8 << 30] * 3)
    expected, _ = answers(path_of("qwen3moe"), 16, backend="cpu")
    found, llm = answers(path_of("qwen3moe"), 16, backend=NAME, gpu_experts=2, **options)
    assert found == expected
    assert [layer.number for layer in tiers_of(llm).layers] == layers
    assert len({layer.gpu for layer in tiers_of(llm).layers}) == len(layers)


@pytest.mark.long
def test_experts_that_cannot_be_read_stay_where_they_are(
    moving: None, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(backend: CUDABackend, contents: Sequence[Any]) -> None:
        raise ModelError("the file is gone")

    expected, _ = answers(path_of("qwen3moe"), 16, backend="cpu")
    with patch.object(CUDABackend, "put_experts", fail):
        found, llm = answers(path_of("qwen3moe"), 16, backend=NAME, gpu_experts=2)
    assert found == expected
    assert all(layer.owners.tolist() == [0, 1] for layer in tiers_of(llm).layers)
    assert "experts stay where they are: cuda:0: the file is gone" in caplog.text


def test_a_number_below_zero() -> None:
    with pytest.raises(OptionError, match="gpu_experts = -1 must be at least 0"):
        chaski.load(path_of("qwen3moe"), backend=NAME, gpu_experts=-1)


@pytest.mark.long
@pytest.mark.parametrize("is_faster", [True, False])
def test_slots_where_a_gpu_has_no_room_for_all_experts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_faster: bool
) -> None:
    path = path_of("qwen3moe")
    expected, _ = answers(path, 3, backend="cpu")
    monkeypatch.setattr("chaski.ml.cuda.plan._RECORDED_BYTES", 0)  # more than all experts of a tiny model
    needed = []
    for options in ({}, {"gpu_experts": 3}):
        with chaski.load(path, **SIZE, num_batch=3, backend=NAME, **options) as llm:
            needed.append(llm.memory().on("cuda:0").total)
    room = needed[0] - 1
    assert needed[1] <= room, needed
    monkeypatch.setattr("tests.cuda.emulated.gpu.SIZES", [room])
    monkeypatch.setattr("chaski.runner.loading.devices.are_faster", lambda *_: is_faster)
    found, llm = answers(path, 3, backend=NAME)
    assert found == expected
    backend = llm._backend
    assert isinstance(backend, ShardedBackend)
    assert (backend._tiers is not None) == is_faster
    assert ("experts of each layer, those that tokens choose most" in caplog.text) == is_faster
