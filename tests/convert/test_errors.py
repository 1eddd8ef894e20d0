"""Checkpoints that cannot be converted: errors name the cause, and no file is left."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from chaski.cli.main import chaski_command
from chaski.convert.convert import convert
from chaski.errors import ChaskiError, FormatError, ModelError, OptionError, TokenizerError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.mixture import Mixture
from tests.convert.checkpoints import DATA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DATA / "llama3", tmp_path / "llama3"))


def change(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def rewrite(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a safetensors file."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def refused(folder: Path, kind: type[ChaskiError], message: str) -> None:
    out = folder.parent / "out.gguf"
    with pytest.raises(kind, match=message):
        convert(folder, out, "F32")
    assert [path.name for path in folder.parent.iterdir()] == ["llama3"]


def test_types_that_need_importance_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of this checkpoint are too short for such types."""
    monkeypatch.setattr(Mixture, "needs_importance", lambda *_: True)
    with pytest.raises(
        OptionError, match=r"needs an importance matrix; convert to F16, then use `chaski imatrix`"
    ):
        convert(folder, folder.parent / "out.gguf", "Q4_0")
    assert [path.name for path in folder.parent.iterdir()] == ["llama3"]


CONFIGS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no architecture": ({"architectures": []}, UnsupportedError, "architecture None cannot be converted"),
    "unknown": ({"architectures": ["X"]}, UnsupportedError, "'X' cannot be converted; known are .*Llama"),
    "hqq": ({"quantization_config": {"quant_method": "hqq"}}, UnsupportedError, "stored by 'hqq' .*fp8"),
    "torchao": (
        {"quantization_config": {"quant_method": "torchao"}},
        UnsupportedError,
        "stored by 'torchao'",
    ),
    "no method": ({"quantization_config": {"bits": 4}}, ModelError, "'quant_method' is missing"),
    "rope without a range": (
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
        ModelError,
        "low_freq_factor below high_freq_factor",
    ),
    "missing size": ({"hidden_size": None}, ModelError, "'hidden_size' is missing"),
    "size is text": ({"hidden_size": "32"}, ModelError, "'hidden_size' is '32', not int"),
    "size is true": ({"hidden_size": True}, ModelError, "'hidden_size' is True, not int"),
    "other size": (
        {"intermediate_size": 64},
        ModelError,
        r"\(48, 32\), but config.json asks for \(64, 32\)",
    ),
    "more layers": (
        {"num_hidden_layers": 3},
        ModelError,
        r"'layers.2.input_layernorm.weight' .* missing",
    ),
    "fewer layers": ({"num_hidden_layers": 1}, ModelError, "no use for tensors layers.1.*and 4 more"),
    "no rope": ({"rope_parameters": {"rope_type": "longrope"}}, UnsupportedError, "rope type 'longrope'"),
    "activation": ({"hidden_act": "gelu"}, UnsupportedError, "'hidden_act' is 'gelu'; only 'silu'"),
    "rows": ({"vocab_size": 303}, ModelError, "'embed_tokens.weight' has shape"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(folder: Path, name: str) -> None:
    values, kind, message = CONFIGS[name]
    change(folder / "config.json", lambda config: config.update(values))
    refused(folder, kind, message)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("config.json", ChaskiError, "config.json: no such file; a checkpoint folder has one"),
        ("model.safetensors", ChaskiError, "no weights"),
        ("tokenizer.json", TokenizerError, "no tokenizer: it has neither"),
    ],
)
def test_files_that_are_missing(folder: Path, name: str, kind: type[ChaskiError], message: str) -> None:
    (folder / name).unlink()
    refused(folder, kind, message)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000, "\udcff"])
def test_files_that_are_no_json(folder: Path, text: str) -> None:
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(folder, FormatError, "not JSON|not a JSON object")


def test_a_tensor_of_whole_numbers(folder: Path) -> None:
    rewrite(
        folder / "model.safetensors",
        lambda header: header["model.layers.0.mlp.up_proj.weight"].update(dtype="I16"),
    )
    refused(folder, ModelError, "'layers.0.mlp.up_proj.weight' holds I16, not floats")


def test_a_tensor_too_many(folder: Path) -> None:
    rewrite(
        folder / "model.safetensors",
        lambda header: header.update(extra={"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}),
    )
    refused(folder, ModelError, "llama has no use for tensors extra$")


def test_names_that_are_the_same_without_wrappers(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    rewrite(folder / "model.safetensors", lambda header: header.update({"norm.weight": entry}))
    refused(folder, ModelError, "'norm.weight'.* are the same one")


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


TOKENIZERS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "regex": (
        {"pre_tokenizer": split(r"\d+")},
        UnsupportedError,
        r"no pre-tokenizer .* cuts text at \\d\+",
    ),
    "step": (
        {"pre_tokenizer": {"type": "Whitespace"}},
        UnsupportedError,
        "'Whitespace'} cannot be",
    ),
    "normalizer": ({"normalizer": {"type": "Lowercase"}}, UnsupportedError, "normalizer Lowercase"),
    "kind": ({"model": {"type": "WordLevel"}}, UnsupportedError, "kind 'WordLevel' cannot be converted"),
    "merges": (
        {"model": {"type": "BPE", "vocab": {}, "merges": ["a"]}},
        TokenizerError,
        "'a' does not have two",
    ),
    "no merges": ({"model": {"type": "BPE", "vocab": {}}}, TokenizerError, "no merges"),
    "ids": (
        {"model": {"type": "BPE", "vocab": {"a": 9999}}},
        TokenizerError,
        "'a' has id 9999; the",
    ),
    "added": ({"added_tokens": [{"content": "x"}]}, TokenizerError, "no id or no content"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(folder: Path, name: str) -> None:
    values, kind, message = TOKENIZERS[name]
    change(folder / "tokenizer.json", lambda tokenizer: tokenizer.update(values))
    refused(folder, kind, message)


def test_values_that_a_type_cannot_hold(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-2] + np.array([0x7F80], "<u2").tobytes())
    refused(folder, FormatError, "tensor '.*': a tensor with values that are infinite")


def test_the_command(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    result = CliRunner().invoke(chaski_command, ["convert", str(folder), str(out), "--type", "q8_0"])
    assert result.exit_code == 0, result.output
    assert "llama" in result.output
    file = open_gguf(out)
    assert file.get("general.file_type", int) == 7
    assert file.tensors["blk.0.attn_q.weight"].type.name == "Q8_0"


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    result = CliRunner().invoke(chaski_command, ["convert", str(tmp_path), str(tmp_path / "out.gguf")])
    assert result.exit_code == 1
    assert "config.json: no such file" in result.output


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("missing/out.gguf", " does not exist; create it first"),
        (".", "is a folder; name the file to write"),
        ("/proc/out.gguf", "/proc/out.gguf cannot be written: "),
        ("llama3/config.json/out.gguf", " does not exist; create it first"),
    ],
)
@pytest.mark.parametrize("is_projector", [False, True])
def test_where_nothing_can_be_written_no_work_begins(
    folder: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str, is_projector: bool
) -> None:
    def work(*arguments: object) -> None:
        raise AssertionError("it began")

    monkeypatch.setattr("chaski.convert.convert.convert", work)
    target = str(folder.parent / out)
    options = [str(folder.parent / "text.gguf"), "--projector", target] if is_projector else [target]
    result = CliRunner().invoke(chaski_command, ["convert", str(folder), *options])
    assert result.exit_code == 1
    assert message in result.stderr
    assert [path.name for path in folder.parent.iterdir()] == ["llama3"]


def test_text_and_projector_need_two_files(folder: Path) -> None:
    out = str(folder.parent / "out.gguf")
    result = CliRunner().invoke(chaski_command, ["convert", str(folder), out, "--projector", out])
    assert "give --projector another name" in result.stderr


def test_a_full_disk_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chaski.convert.convert.write_in_parts", full)
    result = CliRunner().invoke(chaski_command, ["convert", str(folder), str(folder.parent / "out.gguf")])
    assert result.stderr == f"Error: {folder.parent / 'out.gguf'}: No space left on device\n"
