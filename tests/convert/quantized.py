"""Weights as quantizing libraries store them, and checkpoints in which they replace a weight.

tools/fixtures/make_quantized.py makes them with the methods' own libraries.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaski.formats.safetensors import SafeTensor, open_checkpoint, open_safetensors
from tests.convert.checkpoints import DATA, write_safetensors

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


def replacing(name: str) -> dict[str, tuple[str, NDArray[Any]]]:
    """Return the stored tensors of the replaced weight."""
    return {
        REPLACED + key.removeprefix("square."): (tensor.dtype, np.array(tensor.data))
        for key, tensor in fixture(name)[0].items()
        if key.startswith("square.")
    }


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
