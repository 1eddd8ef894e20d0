"""Every matrix of every architecture declares the axis along which it may be cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaski.model.file_dialects import open_model
from chaski.model.registry import build_model

DATA = Path(__file__).parents[1] / "data"
FILES = [
    path
    for folder in ("architectures", "embedders", "llama", "vision")
    for path in sorted((DATA / folder).glob("*.gguf"))
    if not path.stem.endswith("-mmproj")
]
NO_MATRICES = {"token_types.weight", "mm.image_begin", "mm.image_end", "v.image_newline"}
"""Vectors that are stored as a table with rows; one row is added."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_matrix_says_where_it_may_be_cut(path: Path) -> None:
    with open_model(path) as file:
        weights = dict(build_model(file).weights())
    matrices = {
        name: weight
        for name, weight in weights.items()
        if len(weight.shape) > 1 and not weight.host and name not in NO_MATRICES
    }
    assert matrices
    assert {name: weight.shape for name, weight in matrices.items() if weight.split is None} == {}
    assert all(
        0 <= weight.split < len(weight.shape) for weight in weights.values() if weight.split is not None
    )
