from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command
from chaski.kvcache.batch import Batch
from chaski.model.program import Program, Run

ROOT = Path(__file__).parents[2]
SMALL = ("--prompt", "20", "--generate", "6", "--threads", "1")


def bench(path: Path, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(chaski_command, ["bench", str(path), "--json", *SMALL, *arguments])
    assert result.exit_code == 0, result.output
    measured: dict[str, Any] = json.loads(result.stdout)
    return measured


def test_json_has_the_agreed_keys(tiny_llama: Path) -> None:
    command = [sys.executable, "-m", "chaski", "bench", str(tiny_llama), "--json", "--repeat", "2", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=60)
    result = json.loads(done.stdout)
    assert sorted(result) == [
        "decode_tokens_per_second",
        "first_logits_seconds",
        "load_seconds",
        "peak_rss_bytes",
        "prefill_tokens_per_second",
    ]
    assert len(result["prefill_tokens_per_second"]) == len(result["decode_tokens_per_second"]) == 2
    assert 0 < result["load_seconds"] < result["first_logits_seconds"] < 30
    assert 10_000_000 < result["peak_rss_bytes"] < 1_000_000_000
    assert done.stderr == ""


def test_a_table_for_people(tiny_llama: Path) -> None:
    result = CliRunner().invoke(chaski_command, ["bench", str(tiny_llama), "--repeat", "2", *SMALL])
    assert [line.split()[0] for line in result.output.splitlines()[1:6]] == [
        "prefill",
        "decode",
        "load",
        "first",
        "peak",
    ]


Inputs = Mapping[str, np.ndarray]


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Record the number of tokens of each batch, and their sequences, as they are computed."""
    batches: list[tuple[int, list[int]]] = []
    prepared: list[Batch] = []
    prepare, launch = Program.prepare, Program.launch

    def recorded(program: Program, batch: Batch) -> Inputs:
        prepared.append(batch)
        return prepare(program, batch)

    def launched(program: Program, inputs: Inputs, *numbers: Any) -> Run:
        computed = prepared[-1]
        batches.append((len(computed.tokens), sorted(set(computed.sequences.tolist()))))
        return launch(program, inputs, *numbers)

    monkeypatch.setattr(Program, "prepare", recorded)
    monkeypatch.setattr(Program, "launch", launched)
    return batches


@pytest.mark.parametrize(("depth", "batch"), [(0, 1), (9, 1), (0, 3), (9, 3)])
def test_what_is_computed(
    tiny_llama: Path, batches: list[tuple[int, list[int]]], depth: int, batch: int
) -> None:
    """It computes the history, the prompts, and one token per sequence at a time, without extra work."""
    bench(tiny_llama, "--depth", str(depth), "--batch", str(batch), "--repeat", "2")
    everybody = list(range(batch))
    repeat = [(depth * batch, everybody)] if depth else []
    repeat += [(20 * batch, everybody)] + [(batch, everybody)] * 6
    assert batches == [(1, [0])] + repeat * 2


def test_earlier_runs_are_not_remembered(
    tiny_llama: Path,
    batches: list[tuple[int, list[int]]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    for _ in range(2):
        bench(tiny_llama, "--prompt", "300", "--repeat", "1")
    once = batches[: len(batches) // 2]
    assert batches == once * 2
    assert sum(count for count, _ in once) > 300
    assert not list(tmp_path.rglob("*.block"))


def test_a_recurrent_model_computes_its_prompt_once(batches: list[tuple[int, list[int]]]) -> None:
    """The prompt ends with a chunk, so there is no state before the last token."""
    bench(ROOT / "tests/data/architectures/qwen35.gguf", "--prompt", "64", "--repeat", "2")
    assert [count for count, _ in batches] == [1] + ([64] + [1] * 6) * 2


def test_rates_count_the_tokens_of_all_sequences(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.cli.bench._run", lambda model, prompts, num_predict, salt: 2.0)
    result = bench(tiny_llama, "--batch", "4", "--repeat", "1")
    assert result["prefill_tokens_per_second"] == [40.0]
    assert result["decode_tokens_per_second"] == [12.0]


def test_the_tokenizer_is_never_made(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.text.tokenizer.load_tokenizer", None)
    bench(tiny_llama, "--repeat", "1")
