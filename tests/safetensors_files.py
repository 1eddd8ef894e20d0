"""Writing of safetensors files without the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray[Any, Any]]]) -> None:
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        begin = len(data)
        data += values.tobytes()
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
