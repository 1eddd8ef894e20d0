"""Ollama's first gpt-oss files: logits of transformers, bits of the same weights in llama.cpp's form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError
from chaski.formats.file_types import file_type
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.model.file_dialects import open_model
from chaski.runner.loading.engine_choice import native_gap
from tests.backends import BACKENDS, USUAL
from tests.convert.checkpoints import expected
from tests.first_gptoss import FORMS, write_both


@pytest.fixture(scope="module", params=FORMS)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_both(tmp_path_factory.mktemp("gptoss"), request.param)


def logits(path: Path, ids: list[int], backend: str, threads: int, num_batch: int) -> np.ndarray:
    with chaski.load(path, backend=backend, context=64, threads=threads, num_batch=num_batch) as model:
        return np.asarray(model.logits(ids))


@pytest.mark.parametrize(("backend", "threads"), [*((name, 1) for name in BACKENDS), (USUAL, 2)])
def test_the_bits_are_those_of_our_form(files: tuple[Path, Path], backend: str, threads: int) -> None:
    ours, theirs = files
    ids = expected("gpt-oss")["prompt"].tolist()
    for num_batch in (512, 7):
        found = logits(theirs, ids, backend, threads, num_batch)
        np.testing.assert_array_equal(found, logits(ours, ids, backend, threads, num_batch))


def test_logits_are_those_of_transformers(files: tuple[Path, Path]) -> None:
    wanted = expected("gpt-oss")
    outputs = logits(files[1], wanted["prompt"].tolist(), "reference", 1, 512)[wanted["places"]]
    np.testing.assert_allclose(outputs, wanted["outputs"], atol=1e-3)


def test_the_engine_is_ours_and_the_type_is_told(files: tuple[Path, Path]) -> None:
    file = open_model(files[1])
    assert file_type(file) == "MXFP4"
    assert native_gap(file) is None


def test_nothing_is_copied(files: tuple[Path, Path]) -> None:
    with open_gguf(files[1]) as file:
        whole = file.tensors["blk.1.ffn_gate_up_exps.weight"]
        up = open_model(files[1]).tensors["blk.1.ffn_up_exps.weight"]
        row = whole.nbytes // (whole.shape[0] * whole.shape[1])
        assert up.offset == whole.offset + row
        assert up.strides == (whole.shape[1] * row, 2 * row)
        assert (up.shape, up.nbytes) == ((5, 32, 32), whole.nbytes // 2)
        np.testing.assert_array_equal(up.data.reshape(5, 32, row), whole.data.reshape(5, 64, row)[:, 1::2])


@pytest.mark.parametrize("shape", [(5, 63, 32), (5 * 64,)])
def test_rows_that_cannot_be_in_turn_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    tensors = {"blk.0.ffn_gate_up_exps.weight": (np.ones(shape, np.float32), QuantType.F32)}
    write_gguf(tmp_path / "odd.gguf", {"general.architecture": "gptoss"}, tensors)
    with pytest.raises(ModelError, match=r"gate_up_exps\.weight \(.*\) cannot interleave .*"):
        open_model(tmp_path / "odd.gguf")


def test_rows_of_blocks_are_not_cut(tmp_path: Path) -> None:
    """A single matrix instead of a stack is refused."""
    tensors = {"blk.0.ffn_gate_up_exps.weight": (np.ones((4, 64), np.float32), QuantType.Q8_0)}
    write_gguf(tmp_path / "flat.gguf", {"general.architecture": "gptoss"}, tensors)
    with pytest.raises(chaski.ChaskiError, match="rows of Q8_0 cannot be cut"):
        open_model(tmp_path / "flat.gguf")
