"""Checkpoints with quantized weights convert like checkpoints with the numbers that libraries decode.

tools/fixtures/make_quantized.py makes the stored tensors and their values with the methods' own libraries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.quantized import decode_stored
from chaski.formats.safetensors import SafeTensor, open_checkpoint, open_safetensors
from tests.convert.checkpoints import DATA, changed, write_safetensors, written

QUANTIZED = DATA.parent / "quantized"
FORMATS = sorted(path.stem for path in QUANTIZED.iterdir())
# A weight of 32 rows and columns. Conversion changes the order of llama's rows.
REPLACED = "model.layers.0.self_attn.k_proj."


def settings(name: str) -> dict[str, Any]:
    data = (QUANTIZED / f"{name}.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return {"quantization_config": json.loads(header["__metadata__"]["quantization_config"])}


def fixture(name: str) -> tuple[dict[str, SafeTensor], dict[str, NDArray[Any]]]:
    """Return the stored tensors of a format, and the expected values of its weights."""
    tensors = open_safetensors(QUANTIZED / f"{name}.safetensors")
    expected = {weight: tensors.pop(f"{weight}.expected").data for weight in ("square", "odd")}
    return tensors, expected


def config(values: dict[str, Any]) -> Config:
    return Config(Path("config.json"), values)


def stored_as(folder: Path, tensors: dict[str, tuple[str, NDArray[Any]]], values: dict[str, Any]) -> Path:
    """Replace a weight of the checkpoint in `folder`, and set values of its configuration."""
    kept = {
        name: (tensor.dtype, np.array(tensor.data))
        for name, tensor in open_checkpoint(folder).items()
        if not name.startswith(REPLACED)
    }
    write_safetensors(folder / "model.safetensors", kept | tensors)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_decoded_values(name: str) -> None:
    tensors, expected = fixture(name)
    decoded = decode_stored(config(settings(name)), tensors).tensors
    for weight, values in expected.items():
        tensor = decoded[f"{weight}.weight"]
        assert tensor.is_float
        assert tensor.shape == values.shape
        np.testing.assert_array_equal(np.asarray(tensor.data), values)
        # Parts, in the orders in which families ask for them.
        np.testing.assert_array_equal(np.asarray(tensor.data[1:4]), values[1:4])
        np.testing.assert_array_equal(np.asarray(tensor.data[::-2]), values[::-2])
        np.testing.assert_array_equal(np.asarray(tensor.data[:, 2:].T), values[:, 2:].T)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_conversion(tmp_path: Path, family: str, name: str) -> None:
    tensors, expected = fixture(name)
    stored = {
        REPLACED + key.removeprefix("square."): (tensor.dtype, np.array(tensor.data))
        for key, tensor in tensors.items()
        if key.startswith("square.")
    }
    plain = {f"{REPLACED}weight": ("F32", np.array(expected["square"]))}
    folders = (changed(family, tmp_path / kind / family, {}) for kind in ("stored", "plain"))
    found = written(stored_as(next(folders), stored, settings(name)))
    wanted = written(stored_as(next(folders), plain, {}))
    assert {key: (each.type, each.shape, bytes(each.data)) for key, each in found.tensors.items()} == {
        key: (each.type, each.shape, bytes(each.data)) for key, each in wanted.tensors.items()
    }
