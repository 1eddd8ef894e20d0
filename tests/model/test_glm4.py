"""GLM 4 with images: its files arrange queries and keys for a rope of three coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests import families

VARIANT = "glm4/usual"
HEAD, ROTATED = 16, 8


def paired_by_halves(rows: Any) -> Any:
    """Return queries or keys of which elements 0 and 1 of each pair are half of the rotated part apart."""
    heads = rows.reshape(-1, HEAD, *rows.shape[1:])
    parts = heads[:, 0:ROTATED:2], heads[:, 1:ROTATED:2], heads[:, ROTATED:]
    return np.concatenate(parts, axis=1).reshape(rows.shape)


def logits(path: Path) -> Any:
    with chaski.load(path, context=64, threads=1, kv_type="f32") as model:
        return np.asarray(model.logits(list(range(30))))


def test_text_of_a_file_for_images(tmp_path: Path) -> None:
    path = families.converted(VARIANT)
    with open_gguf(path) as file:
        arrays = {name: info.data.view(np.float32).reshape(info.shape) for name, info in file.tensors.items()}
        turned = {
            name: paired_by_halves(array) if ".attn_q." in name or ".attn_k." in name else array
            for name, array in arrays.items()
        }
        sections = np.array([2, 1, 1, 0], np.int32)
        metadata = {**file.metadata, "glm4.rope.dimension_sections": sections}
        tensors = {name: (np.ascontiguousarray(array), QuantType.F32) for name, array in turned.items()}
        write_gguf(tmp_path / "images.gguf", metadata, tensors)
    np.testing.assert_allclose(logits(tmp_path / "images.gguf"), logits(path), rtol=0, atol=1e-4)
