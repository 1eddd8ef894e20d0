"""Random Llama files whose matrices have any types, next to the same weights as float32.

Any bytes are valid codes of quantized types, so matrices are random with a reasonable scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.native.matmul_rule import set_scales
from tests.rewriting import bytes_as
from tests.tiny_llama import write_tiny_llama

HIDDEN, HEADS, KV_HEADS = 256, 4, 2
PRINTABLE = slice(0x21, 0x7F)


@dataclass(frozen=True)
class Pair:
    """The same model twice: `stored` in quantized types, `plain` in float32."""

    stored: Path
    plain: Path


def write_mixed_llama(folder: Path, types: Sequence[QuantType], layers: int = 2, experts: int = 0) -> Pair:
    """Write the models, with these types for one matrix after the other. Tokens use two experts, if any."""
    with open_gguf(write_tiny_llama(folder / "tiny.gguf")) as tiny:
        metadata = dict(tiny.metadata)
        vocab_size = tiny.tensors["token_embd.weight"].shape[0]
    metadata |= {f"llama.{key}": HIDDEN for key in ("embedding_length", "feed_forward_length")}
    metadata["llama.block_count"] = layers
    kv = KV_HEADS * HIDDEN // HEADS
    rows: dict[str, tuple[int, ...]] = {
        "attn_q": (HIDDEN,),
        "attn_k": (kv,),
        "attn_v": (kv,),
        "attn_output": (HIDDEN,),
    }
    if experts:
        metadata |= {"llama.expert_count": experts, "llama.expert_used_count": 2}
        rows |= dict.fromkeys(("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), (experts, HIDDEN))
    else:
        rows |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), (HIDDEN,))
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab_size, HIDDEN)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}.weight": (*count, HIDDEN) for name, count in rows.items()}
    random = np.random.default_rng(2)
    stored, plain = {}, {}
    for (name, shape), type in zip(shapes.items(), cycle(types), strict=False):
        blocks = random_blocks(type, int(np.prod(shape[:-1])), random)
        stored[name] = bytes_as(blocks, type, shape)
        plain[name] = dequantize(blocks, type, shape), QuantType.F32
    norms = [f"blk.{layer}.{name}" for layer in range(layers) for name in ("attn_norm", "ffn_norm")]
    others: dict[str, np.ndarray[Any, Any]] = {
        f"{name}.weight": np.ones(HIDDEN, np.float32) for name in (*norms, "output_norm")
    }
    for layer in range(layers if experts else 0):
        others[f"blk.{layer}.ffn_gate_inp.weight"] = random.standard_normal((experts, HIDDEN), np.float32)
    output = np.zeros((vocab_size, HIDDEN), np.float32)  # it never ends, and writes only complete characters
    output[PRINTABLE] = random.standard_normal(output[PRINTABLE].shape) / HIDDEN**0.5
    others["output.weight"] = output
    same = {name: (array, QuantType.F32) for name, array in others.items()}
    write_gguf(folder / "stored.gguf", metadata, {**stored, **same})
    write_gguf(folder / "plain.gguf", metadata, {**plain, **same})
    return Pair(folder / "stored.gguf", folder / "plain.gguf")


def random_blocks(type: QuantType, rows: int, random: np.random.Generator) -> np.ndarray:
    """Return random codes for rows of HIDDEN elements, with a scale that keeps the size of products."""
    size = HIDDEN // type.block_size * type.block_bytes
    blocks = random.integers(0, 256, (rows, size), np.uint8).view(type.layout)
    if type.name.startswith("TQ"):
        blocks["qs"] = random.integers(0, 0xAA, blocks["qs"].shape, np.uint8)
    if type in (QuantType.TQ2_0, QuantType.Q2_0):  # code 3 is unused, or rare
        blocks["qs"] &= ~(blocks["qs"] >> 1) | 0xAA
    if type is QuantType.NVFP4:
        blocks["d"] = random.integers(0x10, 0x18, blocks["d"].shape)
    if type is QuantType.MXFP4:
        blocks["e"] = 122
    set_scales(blocks, type, lambda: 1.0)
    values = dequantize(blocks.view(np.uint8), type, (rows, HIDDEN))
    set_scales(blocks, type, lambda: 1.5 / HIDDEN**0.5 / float(values.std()))
    return blocks.view(np.uint8)
