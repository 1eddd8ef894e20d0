"""Random LoRA adapters in GGUF files, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.gguf import GGUFFile
from chaski.formats.gguf_writer import Source, write_gguf
from chaski.formats.quant import QuantType

__all__ = ["SEVEN", "adapted_names", "metadata", "random_adapter"]

SEVEN = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def metadata(architecture: str = "llama", alpha: float = 32.0, **more: Any) -> dict[str, Any]:
    """Return the metadata of an adapter."""
    return {
        "general.type": "adapter",
        "general.architecture": architecture,
        "adapter.type": "lora",
        "adapter.lora.alpha": alpha,
        **more,
    }


def adapted_names(base: GGUFFile, modules: Sequence[str] = SEVEN) -> list[str]:
    """Return the names of a model's matrices that belong to these modules."""
    return [
        name
        for name, info in base.tensors.items()
        if len(info.shape) == 2 and any(f".{module}.weight" in f".{name}" for module in modules)
    ]


def random_adapter(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    rank: int = 16,
    type: QuantType = QuantType.F16,
    alpha: float = 32.0,
    architecture: str = "llama",
    size: float = 0.02,
) -> Path:
    """Write an adapter of normally distributed values for matrices of these shapes (rows, columns)."""
    generator = np.random.default_rng(seed)
    tensors: dict[str, Source] = {}
    for name, (rows, columns) in shapes.items():
        for side, shape in (("a", (rank, columns)), ("b", (rows, rank))):
            values = generator.standard_normal(shape, np.float32) * np.float32(size)
            fits = shape[1] % type.block_size == 0
            tensors[f"{name}.lora_{side}"] = values, type if fits else QuantType.F32
    write_gguf(path, metadata(architecture, alpha), tensors)
    return path
