"""Tiny targets with EAGLE-3 drafts. Weights are random, except those that make drafts right at times.

The target's layers add little to the embedding of the last token. The draft attends mostly to the token
itself, and passes on half of the embedding's elements.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.rewriting import bytes_as

__all__ = ["DATA", "write_eagle3", "write_quieter"]

DATA = Path(__file__).parent / "data" / "architectures"
_OUTPUTS = ("ssm_out.weight", "attn_output.weight", "ffn_down.weight", "ffn_down_exps.weight")
_HEAD = 16


def write_quieter(name: str, path: Path, said_by_layers: float = 0.6) -> Path:
    """Write the tiny model `name`, with the outputs of its layers multiplied by `said_by_layers`."""
    with open_gguf(DATA / f"{name}.gguf") as file:
        metadata: dict[str, Any] = dict(file.metadata)
        arrays = {key: dequantize(info.data, info.type, info.shape) for key, info in file.tensors.items()}
    factors = {key: said_by_layers if key.endswith(_OUTPUTS) else 1.0 for key in arrays}
    write_gguf(path, metadata, {key: (arrays[key] * factors[key], QuantType.F32) for key in arrays})
    return path


def write_eagle3(
    target: Path,
    path: Path,
    *,
    size: int = 0,
    layers: tuple[int, ...] = (0, 1, 1),
    num_proposed: int = 0,
    is_newer: bool = False,
    has_own_embeddings: bool = False,
    cut: int = 0,
    without: tuple[str, ...] = (),
    **metadata: object,
) -> Path:
    """Write a draft for the model in `target`, and return its path.

    `size`: the size of its rows, if it differs from the target's. `num_proposed`: the number of tokens that
    it can propose; the first of them is `cut` too high. `is_newer`: with the norms of EAGLE-3.1 and of
    RedHat's drafts. `without`: tensors to omit. `metadata` replaces entries, with `__` for `.`.
    """
    random = np.random.default_rng(3)
    with open_gguf(target) as file:
        tokenizer = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer.ggml")}
        table = _array(file, "token_embd.weight")
        output = _array(file, "output.weight") if "output.weight" in file.tensors else table
    vocab_size, hidden = table.shape
    size = size or hidden
    heads = size // _HEAD

    def noise(*shape: int) -> np.ndarray:
        return 0.03 * random.standard_normal(shape).astype(np.float32)

    eye = np.eye(heads * _HEAD, 2 * size, dtype=np.float32)
    queries = eye.reshape(heads, _HEAD, -1).repeat(2, 0).reshape(2 * heads * _HEAD, -1)
    arrays = {
        "fc.weight": noise(size, len(layers) * hidden),
        "blk.0.attn_norm.weight": 1 + noise(size),
        "blk.0.attn_norm_2.weight": 1 + noise(size),
        "blk.0.attn_q.weight": 2 * queries + noise(*queries.shape),
        "blk.0.attn_k.weight": 2 * eye + noise(*eye.shape),
        "blk.0.attn_v.weight": eye + noise(*eye.shape),
        "blk.0.attn_output.weight": queries[:, :size].T / 2 + noise(size, len(queries)),
        "blk.0.ffn_norm.weight": 1 + noise(size),
        "blk.0.ffn_gate.weight": noise(48, size),
        "blk.0.ffn_up.weight": noise(48, size),
        "blk.0.ffn_down.weight": noise(size, 48),
        "output_norm.weight": 1 + noise(size),
    }
    tensors: dict[str, Any] = {}
    if size != hidden or has_own_embeddings:
        arrays["token_embd.weight"] = _fitted(table, size)
        arrays["output.weight"] = _fitted(output, size)
    if num_proposed:
        ids = np.sort(random.choice(vocab_size, num_proposed, replace=False)).astype("<i8")
        arrays["output.weight"] = _fitted(output, size)[ids]
        ids[0] += cut
        tensors["d2t"] = bytes_as(ids.view(np.uint8), QuantType.I64, ids.shape)
    if is_newer:
        arrays["enc.output_norm.weight"] = 1 + noise(len(layers) * hidden)
    entries = tokenizer | {
        "general.architecture": "eagle3",
        "eagle3.block_count": 1,
        "eagle3.context_length": 256,
        "eagle3.embedding_length": size,
        "eagle3.feed_forward_length": 48,
        "eagle3.attention.head_count": 2 * heads,
        "eagle3.attention.head_count_kv": heads,
        "eagle3.attention.key_length": _HEAD,
        "eagle3.attention.value_length": _HEAD,
        "eagle3.attention.layer_norm_rms_epsilon": 1e-5,
        "eagle3.rope.dimension_count": _HEAD,
        "eagle3.rope.freq_base": 10000.0,
        "eagle3.vocab_size": vocab_size,
        "eagle3.target_layers": list(layers),
        "eagle3.target_hidden_size": hidden,
        "eagle3.norm_before_residual": is_newer,
        "eagle3.norm_before_fc": is_newer,
    }
    entries |= {key.replace("__", "."): value for key, value in metadata.items()}
    arrays = {key: values for key, values in arrays.items() if key not in without}
    tensors |= {key: (values.astype(np.float32), QuantType.F32) for key, values in arrays.items()}
    write_gguf(path, entries, tensors)
    return path


def _array(file: Any, name: str) -> np.ndarray:
    info = file.tensors[name]
    return dequantize(info.data, info.type, info.shape)


def _fitted(table: np.ndarray, size: int) -> np.ndarray:
    """Return the first columns of a table, padded with zeros."""
    wide = np.zeros((len(table), size), np.float32)
    count = min(size, table.shape[1])
    wide[:, :count] = table[:, :count]
    return wide
