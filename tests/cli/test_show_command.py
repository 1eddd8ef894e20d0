from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import chaski
from chaski.cli.main import chaski_command
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.names import ModelName
from chaski.runner.loading import engine_choice
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.own_heads import write_with_heads
from tests.tiny_llama import TEMPLATE, write_tiny_llama


def show(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, ["show", *arguments])


def test_the_overview(tiny_llama: Path) -> None:
    assert show(str(tiny_llama)).output == (
        "  Model\n"
        "    name                Tiny\n"
        "    architecture        llama\n"
        "    parameters          95.7K\n"
        "    context length      256\n"
        "    embedding length    64\n"
        "    quantization        F32\n"
        "    tensors             21: 21 F32\n"
        "    engine              native\n"
        "\n"
        "  Capabilities\n"
        "    completion\n"
        "\n"
    )


def test_the_names_of_several_templates(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "f.gguf", tokenizer__chat_template__tool_use="{{ tools }}")
    assert "    chat templates      default, tool_use\n" in show(str(path)).output
    assert "    tools\n" in show(str(path)).output


def test_who_would_compute_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_llama(tmp_path / "f.gguf", general__architecture="foreign")
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: None)
    assert "engine          llama.cpp (not installed: pip install" in show(str(path)).output
    monkeypatch.setattr(engine_choice, "find_spec", lambda name: object())
    reason = "architecture 'foreign' is not implemented here"
    assert f"engine          llama.cpp ({reason}" in show(str(path)).output
    monkeypatch.setenv("CHASKI_ENGINE", "native")
    assert "engine          native (not supported)\n" in show(str(path)).output


def test_tensors_and_metadata(tiny_llama: Path) -> None:
    listed = show(str(tiny_llama), "--tensors").output
    assert "    blk.1.ffn_down.weight       F32    [64, 96]\n" in listed
    assert "Metadata" not in listed
    everything = show(str(tiny_llama), "--verbose").output
    assert "    tokenizer.ggml.merges                     [t h th e i n Ġ the a n ...+1 more]\n" in everything
    assert "    tokenizer.ggml.add_bos_token              true\n" in everything
    assert "    llama.attention.layer_norm_rms_epsilon    1e-05\n" in everything
    assert "[64, 96]" in everything


def test_the_template(tiny_llama: Path, tmp_path: Path) -> None:
    assert show(str(tiny_llama), "--template").output == TEMPLATE + "\n"
    plain = write_tiny_llama(tmp_path / "plain.gguf", chat_template=None)
    result = show(str(plain), "--template")
    assert result.exit_code == 1
    assert result.stderr == f"Error: {plain} has no chat template\n"


def test_what_the_file_says_of_itself(tmp_path: Path) -> None:
    path = write_tiny_llama(
        tmp_path / "tiny.gguf",
        general__file_type=15,
        general__license="First\n\nSecond\nThird",
        general__name="\x1b[1m",
    )
    output = show(str(path)).output
    assert "    quantization        Q4_K_M\n" in output
    assert "  License\n    First\n    Second\n    ...\n" in output
    assert "    name                \\x1b[1m\n" in output


def test_architectures_that_cannot_run_can_be_shown(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "other.gguf", general__architecture="mamba9")
    assert "    architecture    mamba9\n" in show(str(path)).output


def test_the_encoder_of_a_stored_model(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    one = {"v.weight": (np.ones((1, 32), np.float32), QuantType.F32)}
    metadata = {"general.architecture": "clip", "clip.vision.embedding_length": 32}
    write_gguf(tmp_path / "projector.gguf", metadata | {"clip.vision.projection_dim": 64}, one)
    recipe = Recipe(sources=[tiny_llama, tmp_path / "projector.gguf"])
    for _ in create(Store.default(), ModelName.parse("vision"), recipe):
        pass
    assert (
        "  Projector\n"
        "    architecture        clip\n"
        "    parameters          32\n"
        "    embedding length    32\n"
        "    dimensions          64\n"
        "\n"
    ) in show("vision").output


def test_faults_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"nothing of the kind")
    result = show(str(path))
    assert result.exit_code == 1
    assert "not a GGUF file" in result.stderr


def test_the_memory_of_a_context(tiny_llama: Path) -> None:
    lines = show(str(tiny_llama), "--memory", "--context", "256", "--parallel", "4").output.splitlines()
    rows = [[cell for cell in line.split("  ") if cell] for line in lines if line]
    assert rows[0] == ["Memory"]
    assert [cell.strip() for cell in rows.pop(1)] == ["sequences", "4 of 256 tokens"]
    assert [cell.strip() for cell in rows[1]] == ["layers", "cells", "memory"]
    names = [row[0] for row in rows[2:]]
    assert names == [
        "weights",
        "cache, all tokens",
        "plans",
        "all",
        "prefix cache, later, at most",
        "available",
    ]
    # Two layers with keys and values of two heads of 16 floats; keys are stored in panels of 16 cells.
    assert [cell.strip() for cell in rows[3][1:3]] == ["2", "1024"]
    assert rows[3][3].strip().startswith("525 kB"), rows[3]


def test_the_heads_of_a_model(tmp_path: Path) -> None:
    path = write_with_heads("qwen35", tmp_path / "heads.gguf")
    assert "    speculation         n-grams, built-in heads\n" in show(str(path)).output
    lines = show(str(path), "--memory", "--context", "128").output.splitlines()
    (row,) = (line.split("  ") for line in lines if "all tokens but the first 1" in line)
    assert [cell.strip() for cell in row if cell.strip()][1:3] == ["1", "128"]


def test_the_memory_of_the_prefix_cache(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def row() -> list[str]:
        return [line for line in show(str(tiny_llama), "--memory").output.splitlines() if "prefix" in line]

    monkeypatch.setenv("CHASKI_PREFIX_CACHE_MEMORY", "3MB")
    assert row()[0].split()[-2:] == ["3", "MB"]
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "off")
    assert row() == []


def test_memory_that_nobody_has(tiny_llama: Path) -> None:
    result = show(str(tiny_llama), "--memory", "--context", str(2**29))
    assert result.exit_code == 0
    assert "plans" in result.output
    assert "unknown" in result.output
    assert show(str(tiny_llama), "--memory", "--context", "0").exit_code == 2


def test_the_memory_of_a_model_as_it_is_loaded(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sequences() -> str:
        line = show(str(tiny_llama), "--memory").output.splitlines()[1]
        return line.strip().removeprefix("sequences").strip()

    with chaski.load(tiny_llama) as model:
        assert sequences() == f"1 of {model.context} tokens"
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "128")
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "3")
    assert sequences() == "3 of 128 tokens"
    assert show(str(tiny_llama), "--context", "128").exit_code == 2
