"""Comparison of projectors with those that llama.cpp's converter writes."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.gguf import open_gguf

__all__ = ["assert_described"]


def assert_described(path: Path, wanted: dict[str, Any]) -> None:
    """Compare a projector with the keys, and the shapes and digests of tensors, of another one."""
    with open_gguf(path) as file:
        found = {
            key: [list(info.shape), blake2b(info.data.tobytes(), digest_size=8).hexdigest()]
            for key, info in file.tensors.items()
        }
        assert found == wanted["tensors"]
        keys = {key: value for key, value in wanted["keys"].items() if "audio" not in key}
        assert file.metadata.keys() >= keys.keys()
        for key, value in keys.items():
            assert np.array_equal(np.array(file.metadata[key]), np.array(value)), key
