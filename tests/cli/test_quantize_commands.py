"""The commands `quantize` and `imatrix`, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import chaski
from chaski.cli.main import chaski_command
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.tiny_llama import write_tiny_llama


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(chaski_command, [str(each) for each in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "tiny.gguf")


def types(path: Path) -> dict[str, str]:
    with open_gguf(path) as file:
        return {name: tensor.type.name for name, tensor in file.tensors.items()}


def test_a_model_is_measured_and_quantized(model: Path, tmp_path: Path) -> None:
    text, matrix, out = tmp_path / "text.txt", tmp_path / "i.gguf", tmp_path / "small.gguf"
    text.write_text("the load of the llama carries mountains of wool " * 20)
    done = run("imatrix", model, text, "-o", matrix, "--chunk-size", "32")
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{matrix}: 14 tensors, ")
    done = run("quantize", model, out, "--type", "q4_0", "--imatrix", matrix)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{out}: Q4_0, ")
    assert " bits per weight, " in done.stdout
    with open_gguf(out) as file:
        assert file.get("quantize.imatrix.file", str) == str(matrix)
    with chaski.load(out) as loaded:
        assert loaded.logits([1, 2]).shape[0] > 0


def test_wishes(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "small.gguf"
    options = ["--tensor-type", "attn_[qk]=q8_0", "--tensor-type", "FFN_DOWN=Q5_0"]
    options += ["--token-embedding-type", "q4_1", "--output-tensor-type", "f16"]
    assert run("quantize", model, out, "--type", "Q4_0", *options).exit_code == 0
    found = types(out)
    assert found["blk.0.attn_q.weight"] == found["blk.1.attn_k.weight"] == "Q8_0"
    assert found["blk.0.ffn_down.weight"] == "Q5_0"
    assert found["blk.0.attn_v.weight"] == "Q4_0"
    assert found["token_embd.weight"] == "Q4_1"
    assert run("quantize", model, out, "--type", "Q4_0", "--pure").exit_code == 0
    assert {type for name, type in types(out).items() if "_norm" not in name} == {"Q4_0"}


def test_a_dry_run_writes_nothing(model: Path, tmp_path: Path) -> None:
    done = run("quantize", model, tmp_path / "small.gguf", "--type", "Q8_0", "--dry-run")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    assert lines[0].split()[0] == "token_embd.weight"
    assert lines[0].split()[-3] == "Q8_0"
    assert lines[-1].startswith("Q8_0: ")
    assert not (tmp_path / "small.gguf").exists()


def test_a_file_in_several_parts(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b")):
        split: dict[str, np.generic] = {
            "split.no": np.uint16(number),
            "split.count": np.uint16(2),
            "split.tensors.count": np.int32(2),
        }
        tensors = {f"blk.{number}.{name}.weight": (np.ones((2, 256), np.float32), QuantType.F32)}
        path = tmp_path / f"x-{number + 1:05d}-of-00002.gguf"
        write_gguf(path, {"general.architecture": "llama", "llama.block_count": 2, **split}, tensors)
    done = run("quantize", tmp_path / "x-00001-of-00002.gguf", tmp_path / "out.gguf", "--type", "Q2_K")
    assert done.exit_code == 0, done.output
    assert types(tmp_path / "out.gguf") == {"blk.0.a.weight": "Q2_K", "blk.1.b.weight": "Q2_K"}
    done = run("quantize", tmp_path / "x-00001-of-00002.gguf", tmp_path / "x-00002-of-00002.gguf")
    assert "is the file to read; give the result another name" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--type", "Q9"], "type 'Q9' is not known; choose one of"),
        (["--tensor-type", "attn_q"], "is not PATTERN=TYPE, such as ffn_down=q6_k"),
        (["--tensor-type", "(=q8_0"], "'(' is not a regular expression"),
        (["--tensor-type", "attn_q=q9"], "tensor type 'q9' is not known"),
        (["--output-tensor-type", "x"], "tensor type 'x' is not known"),
        (["--imatrix", "none.gguf"], "none.gguf: No such file"),
    ],
)
def test_what_is_refused(model: Path, tmp_path: Path, options: list[str], message: str) -> None:
    done = run("quantize", model, tmp_path / "out.gguf", *options)
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "out.gguf").exists()


def test_a_missing_file_and_a_missing_folder(model: Path, tmp_path: Path) -> None:
    assert run("quantize", tmp_path / "none.gguf", tmp_path / "out.gguf").exit_code == 1
    done = run("quantize", model, tmp_path / "none" / "out.gguf")
    assert "does not exist; create it first" in done.output
