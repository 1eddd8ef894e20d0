"""Prompts are computed in small batches that pass the nodes as a pipeline."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import ComputationError
from chaski.formats.quant import QuantType
from chaski.model.program import Program, Run
from chaski.runner.engine.in_flight import InFlight
from tests.ml.sharded.members import Nodes
from tests.tiny_llama import write_tiny_llama

ARCHITECTURES = Path(__file__).parents[2] / "data" / "architectures"
PROMPTS = [[5 + (3 * i + i // 7 + seed) % 50 for i in range(560)] for seed in (0, 5)]


def answers(path: Path, backend: str | None) -> list[Any]:
    """Return answers to one prompt, another in its cells, the first again, and both concurrently."""
    options = {"num_predict": 12, "temperature": 1.0, "seed": 3, "ignore_eos": True}
    with chaski.load(path, context=1024, num_batch=256, parallel=2, backend=backend) as llm:
        found = [llm.generate(prompt, **options) for prompt in (*PROMPTS, [*PROMPTS[0], 9])]
        found += llm.generate_many([[7, *PROMPTS[0]], PROMPTS[1], [8, *PROMPTS[1][:300]]], **options)
    return [(each.token_ids, each.cached_tokens) for each in found]


@pytest.mark.parametrize(
    ("name", "count", "most_at_once"),
    [
        ("llama", 3, 4),
        ("qwen35", 2, 3),
        *(pytest.param(name, 2, 3, marks=pytest.mark.long) for name in ("llama", "gemma3")),
    ],
)
def test_batches_of_a_prompt_follow_each_other(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, count: int, most_at_once: int
) -> None:
    path = ARCHITECTURES / f"{name}.gguf"
    if name == "llama":
        path = write_tiny_llama(
            tmp_path / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=1024, layers=4
        )
    expected = answers(path, "cpu")
    at_once = []
    launch = Program.launch

    def launching(program: Program, *arguments: Any) -> Run:
        run = launch(program, *arguments)
        at_once.append(len(program._open))
        return run

    monkeypatch.setattr(Program, "launch", launching)
    nodes.use(monkeypatch, "layers", count)
    assert answers(path, None) == expected
    assert max(at_once) == most_at_once


def many_answers(path: Path, backend: str | None) -> list[Any]:
    """Return answers to twelve concurrent prompts of several lengths; some answers end before others."""

    def answer(number: int) -> Any:
        prompt = PROMPTS[0][: 3 + 20 * number]
        return llm.generate(prompt, num_predict=6 + 3 * number, temperature=1.0, seed=number).token_ids

    with (
        chaski.load(path, context=512, num_batch=256, parallel=12, backend=backend) as llm,
        ThreadPoolExecutor(12) as pool,
    ):
        return list(pool.map(answer, range(12)))


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama", 3),
        ("qwen35", 2),
        *(pytest.param(name, 2, marks=pytest.mark.long) for name in ("llama", "gemma3")),
    ],
)
def test_sequences_that_decode_take_turns(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, count: int
) -> None:
    path = ARCHITECTURES / f"{name}.gguf"
    if name == "llama":
        path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0, layers=4)
    expected = many_answers(path, "cpu")
    decoding_at_once = []
    launch = InFlight.launch

    def launching(in_flight: InFlight, prepared: Any) -> None:
        launch(in_flight, prepared)
        decoding_at_once.append(sum(len(one.batch.tokens) < 12 for one, *_ in in_flight.batches))

    monkeypatch.setattr(InFlight, "launch", launching)
    nodes.use(monkeypatch, "layers", count)
    # While other programs use all cores, one node may finish before the last one starts.
    for _ in range(5):
        assert many_answers(path, None) == expected
        if max(decoding_at_once) >= count:
            break
    assert max(decoding_at_once) >= count


def test_an_error_on_the_way_ends_what_followed(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", llama__context_length=1024)
    nodes.use(monkeypatch, "layers", 2)
    with chaski.load(path, context=1024, num_batch=256) as llm:
        expected = llm.generate(PROMPTS[0], num_predict=4, temperature=0).token_ids
        launch, count = Program.launch, 0

        def launching(program: Program, values: Any, *numbers: Any) -> Run:
            nonlocal count
            count += 1
            if count == 2:
                values = {**values, "tokens": values["tokens"] * 0 - 1}
            return launch(program, values, *numbers)

        monkeypatch.setattr(Program, "launch", launching)
        with pytest.raises(ComputationError, match="tokens"):
            llm.generate([6, *PROMPTS[0]], num_predict=4, temperature=0)
        assert llm.generate(PROMPTS[0], num_predict=4, temperature=0).token_ids == expected
