"""Ling 3: files with a block for multi-token prediction, which a model whose states stay cannot use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import chaski
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.families import converted

VARIANT = "bailingmoe3/usual"


def test_a_block_for_multi_token_prediction_changes_nothing(tmp_path: Path) -> None:
    """llama.cpp's converter counts the block as a layer that attends."""
    with open_gguf(converted(VARIANT)) as file:
        metadata: dict[str, Any] = dict(file.metadata)
        tensors = {
            name: (dequantize(info.data, info.type, info.shape), QuantType.F32)
            for name, info in file.tensors.items()
        }
    layers = metadata["bailingmoe3.block_count"]
    heads = [*metadata["bailingmoe3.attention.head_count_kv"].tolist(), 1]
    metadata |= {
        "bailingmoe3.block_count": layers + 1,
        "bailingmoe3.nextn_predict_layers": 1,
        "bailingmoe3.attention.head_count_kv": heads,
    }
    size = metadata["bailingmoe3.embedding_length"]
    last = f"blk.{layers - 1}."
    copies = {
        name.replace(last, f"blk.{layers}."): info for name, info in tensors.items() if name.startswith(last)
    }
    joined = np.ones((size, 2 * size), np.float32), QuantType.F32
    write_gguf(
        tmp_path / "m.gguf", metadata, tensors | copies | {f"blk.{layers}.nextn.eh_proj.weight": joined}
    )
    found = []
    for path in (converted(VARIANT), tmp_path / "m.gguf"):
        with chaski.load(path, context=64, threads=1) as model:
            found.append(np.asarray(model.logits(list(range(20)))))
    np.testing.assert_array_equal(*found)
