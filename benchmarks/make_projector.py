"""Files for `benchmarks.vision`: Gemma 3's SigLIP with random weights, as a projector of llama.cpp's form.

And the least text model that llama.cpp wants behind it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

from benchmarks.random_blocks import random_rows
from chaski.formats.gguf_writer import LazyTensor, MetadataValue, write_gguf
from chaski.formats.quant import QuantType

__all__ = ["IMAGE", "ROW", "attention_products", "write_projector", "write_text"]

SIZE, HIDDEN, LAYERS, HEADS, IMAGE, PATCH, ROW = 1152, 4304, 27, 16, 896, 14, 2560
PATCHES = (IMAGE // PATCH) ** 2
_PROJECTOR: dict[str, MetadataValue] = {
    "general.architecture": "clip",
    "clip.has_vision_encoder": True,
    "clip.projector_type": "gemma3",
    "clip.use_gelu": True,
    "clip.vision.block_count": LAYERS,
    "clip.vision.embedding_length": SIZE,
    "clip.vision.feed_forward_length": HIDDEN,
    "clip.vision.projection_dim": ROW,
    "clip.vision.image_size": IMAGE,
    "clip.vision.patch_size": PATCH,
    "clip.vision.image_mean": [0.5, 0.5, 0.5],
    "clip.vision.image_std": [0.5, 0.5, 0.5],
    "clip.vision.projector.scale_factor": 4,
    "clip.vision.attention.head_count": HEADS,
    "clip.vision.attention.layer_norm_epsilon": 1e-6,
}
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_HEAD = 32
_TEXT: dict[str, MetadataValue] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": ROW,
    "llama.feed_forward_length": _HEAD,
    "llama.attention.head_count": 1,
    "llama.attention.key_length": _HEAD,
    "llama.attention.value_length": _HEAD,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.rope.dimension_count": _HEAD,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *_BYTES, "▁"],
    "tokenizer.ggml.scores": [0.0] * (len(_BYTES) + 4),
    "tokenizer.ggml.token_type": [_UNKNOWN, _CONTROL, _CONTROL, *[_BYTE] * len(_BYTES), _NORMAL],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}


def attention_products() -> int:
    """Multiply-adds of attention for an image: scores, and sums of values."""
    return 2 * PATCHES**2 * SIZE * LAYERS


def write_projector(path: Path, type_name: str) -> int:
    """The encoder with matrices of this type -> the multiply-adds of its matrices for an image."""
    with_bias = {"v.patch_embd": (SIZE, 3, PATCH, PATCH), "v.post_ln": (SIZE,)}
    for layer in range(LAYERS):
        block = f"v.blk.{layer}"
        with_bias |= {f"{block}.attn_{part}": (SIZE, SIZE) for part in ("q", "k", "v", "out")}
        with_bias |= {f"{block}.ffn_up": (HIDDEN, SIZE), f"{block}.ffn_down": (SIZE, HIDDEN)}
        with_bias |= {f"{block}.ln1": (SIZE,), f"{block}.ln2": (SIZE,)}
    shapes = {f"{name}.weight": shape for name, shape in with_bias.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in with_bias.items()}
    shapes |= {"v.position_embd.weight": (PATCHES, SIZE), "mm.soft_emb_norm.weight": (SIZE,)}
    shapes["mm.input_projection.weight"] = (SIZE, ROW)
    write_gguf(path, _PROJECTOR, {name: _tensor(name, shape, type_name) for name, shape in shapes.items()})
    products = sum(shape[0] * shape[1] for shape in shapes.values() if len(shape) == 2)
    return PATCHES * (products - PATCHES * SIZE - SIZE * ROW) + PATCHES * SIZE * 3 * PATCH**2


def write_text(path: Path) -> None:
    """A Llama of one narrow layer whose embeddings have the size of the encoder's rows."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(_BYTES) + 4, ROW), "output_norm": (ROW,)}
    shapes |= {f"blk.0.{name}": (ROW,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.{name}": (_HEAD, ROW) for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")}
    shapes |= {f"blk.0.{name}": (ROW, _HEAD) for name in ("attn_output", "ffn_down")}
    write_gguf(
        path, _TEXT, {f"{name}.weight": _tensor(f"{name}.weight", s, "F16") for name, s in shapes.items()}
    )


def _tensor(name: str, shape: tuple[int, ...], type_name: str) -> LazyTensor:
    random = np.random.default_rng(len(name))
    if len(shape) != 2 or "position" in name:
        is_norm = len(shape) == 1 and name.endswith("weight")
        values = random.standard_normal(shape) * 0.02 if not is_norm else np.ones(shape)
        return LazyTensor(shape, QuantType.F32, lambda: [values.astype("<f4").view(np.uint8).ravel()])
    # Rows that are not whole blocks, and what is kept transposed, are F16 as `chaski convert` writes them.
    kind = QuantType[type_name]
    if shape[1] % kind.block_size or name.startswith("mm."):
        kind = QuantType.F16
    rows = random_rows(GGMLQuantizationType(int(kind)), *shape, random)
    return LazyTensor(shape, kind, lambda: [np.ascontiguousarray(rows).view(np.uint8).ravel()])
