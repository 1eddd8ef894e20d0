"""Files with blocks for multi-token prediction, for models that have no use for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.families import FIRST, converted

FIRST_OF = {variant.partition("/")[0]: variant for variant in FIRST}


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("bailingmoe3", {"attention.head_count_kv": 1}),
        ("glm5_next", {"attention.head_count_kv": 1}),
    ],
)
def test_a_block_changes_nothing(tmp_path: Path, family: str, more: dict[str, int]) -> None:
    """llama.cpp's converter counts the block as a layer, also in the lists of keys that differ by layer."""
    variant = FIRST_OF[family]
    with open_gguf(converted(variant)) as file:
        arch, metadata = file.architecture, dict[str, Any](file.metadata)
        tensors = {
            name: (dequantize(info.data, info.type, info.shape), QuantType.F32)
            for name, info in file.tensors.items()
        }
    layers, size = (metadata[f"{arch}.{key}"] for key in ("block_count", "embedding_length"))
    metadata |= {f"{arch}.block_count": layers + 1, f"{arch}.nextn_predict_layers": 1}
    metadata |= {f"{arch}.{key}": [*metadata[f"{arch}.{key}"].tolist(), value] for key, value in more.items()}
    copies = {
        name.replace(f"blk.{layers - 1}.", f"blk.{layers}."): tensor
        for name, tensor in tensors.items()
        if name.startswith(f"blk.{layers - 1}.")
    }
    shapes = {"eh_proj": (size, 2 * size), "enorm": (size,), "hnorm": (size,), "shared_head_norm": (size,)}
    own = {
        f"blk.{layers}.nextn.{name}.weight": (np.ones(shape, np.float32), QuantType.F32)
        for name, shape in shapes.items()
    }
    write_gguf(tmp_path / "m.gguf", metadata, tensors | copies | own)
    found = []
    for path in (converted(variant), tmp_path / "m.gguf"):
        with chaski.load(path, context=64, threads=1) as model:
            found.append(np.asarray(model.logits(list(range(20)))))
    np.testing.assert_array_equal(*found)
