"""Make files for `benchmarks.vision`: an encoder with random weights, in llama.cpp's projector format.

It also makes the smallest text model that llama.cpp requires with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoders import Encoder
from benchmarks.random_blocks import random_rows
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import LazyTensor, MetadataValue, write_gguf
from chaski.formats.quant import QuantType
from chaski.ml.nn import Module
from chaski.model.arch.gemma3.vision import Vision as Gemma3
from chaski.model.arch.gemma4.encoders import read_vision as read_gemma4
from chaski.model.arch.mistral3.vision import Vision as Mistral3
from chaski.model.projectors import PROJECTORS, WITH_COORDINATES, read_vision

__all__ = ["open_vision", "write_projector", "write_text"]

Shape = tuple[int, ...]

_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_HEAD = 32
_TEXT: dict[str, MetadataValue] = {
    "block_count": 1,
    "context_length": 64,
    "feed_forward_length": _HEAD,
    "attention.head_count": 1,
    "attention.key_length": _HEAD,
    "attention.value_length": _HEAD,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": _HEAD,
}
_VOCABULARY: dict[str, MetadataValue] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *_BYTES, "▁"],
    "tokenizer.ggml.scores": [0.0] * (len(_BYTES) + 4),
    "tokenizer.ggml.token_type": [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * len(_BYTES), _NORMAL],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
_TEXT_EPS = 1e-6


def open_vision(file: GGUFFile, row_size: int) -> Any:
    """Open the encoder without its weights, as its models read it."""
    kind = file.get("clip.projector_type", str)
    if kind == "gemma3":
        return Gemma3(file, row_size)
    if kind.startswith("gemma4"):
        return read_gemma4(file, file, row_size)
    if kind == "pixtral":
        return Mistral3(file, row_size, _TEXT_EPS)
    return read_vision(file, file, row_size, PROJECTORS | WITH_COORDINATES)


def write_projector(path: Path, encoder: Encoder, type_name: str) -> None:
    """Write the encoder with matrices of this type.

    The engine's own reader names the tensors of the file; it gets a file with the tensors that it needs for
    this.
    """
    known = {name: _tensor(name, shape, "F16", {}) for name, shape in encoder.tensors.items()}
    write_gguf(path, encoder.metadata(), known)
    with open_gguf(path) as file:
        shapes = _shapes(open_vision(file, encoder.row_size), encoder)
    tensors = {
        name: _tensor(name, shape, type_name, encoder.constants)
        for name, shape in {**shapes, **encoder.tensors}.items()
    }
    write_gguf(path, encoder.metadata(), tensors)


def _shapes(vision: Module, encoder: Encoder) -> dict[str, Shape]:
    """Return the shapes of the tensors in an encoder's file."""
    shapes = {
        name: weight.stored or weight.shape
        for name, weight in vision.weights()
        if not weight.optional or _has(name, encoder)
    }
    for whole, parts in vision.joined_weights() if encoder.is_joined else ():
        rows = sum(shapes.pop(name)[0] for name, _ in parts)
        shapes[whole] = (rows, *parts[0][1].shape[1:])
    return shapes


def _has(name: str, encoder: Encoder) -> bool:
    """Return whether the file has an optional tensor."""
    ending = name.rpartition(".")[2]
    return not name.startswith(encoder.unbiased) if ending == "bias" else ending in encoder.constants


def write_text(path: Path, row_size: int, deep: int) -> None:
    """Write a model of one narrow layer whose embeddings have the size of the encoder's rows.

    It is a Llama, or a Qwen 3-VL if rows have further parts, which that model accepts.
    """
    shapes: dict[str, Shape] = {"token_embd": (len(_BYTES) + 4, row_size), "output_norm": (row_size,)}
    shapes |= {f"blk.0.{name}": (row_size,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {
        f"blk.0.{name}": (_HEAD, row_size) for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
    }
    shapes |= {f"blk.0.{name}": (row_size, _HEAD) for name in ("attn_output", "ffn_down")}
    entries = _TEXT | {"embedding_length": row_size}
    if deep:
        shapes |= {f"blk.0.{name}": (_HEAD,) for name in ("attn_q_norm", "attn_k_norm")}
        entries |= {"n_deepstack_layers": deep, "rope.dimension_sections": [8, 4, 4, 0]}
    architecture = "qwen3vl" if deep else "llama"
    metadata = {"general.architecture": architecture} | _VOCABULARY
    metadata |= {f"{architecture}.{name}": value for name, value in entries.items()}
    names = {f"{name}.weight": shape for name, shape in shapes.items()}
    write_gguf(path, metadata, {name: _tensor(name, shape, "F16", {}) for name, shape in names.items()})


def _tensor(name: str, shape: Shape, type_name: str, constants: Mapping[str, float]) -> LazyTensor:
    random = np.random.default_rng(len(name))
    constant = constants.get(name.rpartition(".")[2])
    if constant is None and len(shape) == 1 and name.endswith("weight"):
        constant = 1.0
    if constant is not None or len(shape) != 2 or "pos" in name or "query" in name:
        values = random.standard_normal(shape) * 0.02 if constant is None else np.full(shape, constant)
        return LazyTensor(shape, QuantType.F32, lambda: [values.astype("<f4").view(np.uint8).ravel()])
    # Rows that are not whole blocks, and transposed matrices, are F16, as in files of `chaski convert`.
    kind = QuantType[type_name]
    if shape[1] % kind.block_size or name == "mm.input_projection.weight":
        kind = QuantType.F16
    rows = random_rows(kind, *shape, random)
    return LazyTensor(shape, kind, lambda: [np.ascontiguousarray(rows).view(np.uint8).ravel()])
