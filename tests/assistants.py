"""Tiny Gemma 4 with assistants. Weights are random, except those that make assistants right at times.

The layers of both add little to the embedding of the last token, most of which the assistant keeps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType

__all__ = ["write_assistant", "write_quiet_gemma"]

DATA = Path(__file__).parent / "data" / "architectures"
_ADDING = ("post_attention_norm.weight", "post_ffw_norm.weight", "post_norm.weight")
_SIZE, _HEADS, _KINDS = 24, 3, (True, False, True)
_CLUSTERS, _NEAREST = 12, 5


def write_quiet_gemma(name: str, path: Path, said_by_layers: float = 0.9) -> Path:
    """Write the tiny model `name`, with the outputs of its layers multiplied by `said_by_layers`."""
    with open_gguf(DATA / f"{name}.gguf") as file:
        arrays = {key: dequantize(info.data, info.type, info.shape) for key, info in file.tensors.items()}
        factors = {key: said_by_layers if key.endswith(_ADDING) else 1.0 for key in arrays}
        write_gguf(path, file.metadata, {key: (arrays[key] * factors[key], QuantType.F32) for key in arrays})
    return path


def write_assistant(
    target: Path, path: Path, *, in_clusters: bool = False, knows: bool = True, **metadata: object
) -> Path:
    """Write an assistant for the model in `target`, and return its path.

    `in_clusters`: its vocabulary is clustered, except for the last token. `knows`: it is right at times.
    `metadata` replaces entries, with `__` for `.`.
    """
    random = np.random.default_rng(3)
    with open_gguf(target) as file:
        entries: dict[str, Any] = {
            key.replace("gemma4.", "gemma4-assistant."): value
            for key, value in file.metadata.items()
            if "per_layer" not in key and ".vision." not in key
        }
        table = dequantize(
            *(getattr(file.tensors["token_embd.weight"], key) for key in ("data", "type", "shape"))
        )
    vocab_size, wide = table.shape

    def noise(*shape: int) -> np.ndarray:
        return 0.05 * random.standard_normal(shape).astype(np.float32)

    kept = np.linalg.qr(random.standard_normal((wide, _SIZE)))[
        0
    ].T  # an orthonormal part of the target's states
    arrays = {
        "token_embd.weight": table @ kept.T if knows else 10 * noise(vocab_size, _SIZE),
        "output_norm.weight": 1 + noise(_SIZE),
        "nextn.pre_projection.weight": np.hstack([kept, noise(_SIZE, wide)]),
        "nextn.post_projection.weight": kept.T + noise(wide, _SIZE),
        "rope_freqs.weight": np.where(np.arange(20) < 5, 1.0, 1e30),
    }
    for index, is_near in enumerate(_KINDS):
        size = 20 if is_near else 40
        layer = {
            "attn_q.weight": noise(_HEADS * size, _SIZE),
            "attn_q_norm.weight": 1 + noise(size),
            "attn_output.weight": noise(_SIZE, _HEADS * size),
            "ffn_gate.weight": noise(48, _SIZE),
            "ffn_up.weight": noise(48, _SIZE),
            "ffn_down.weight": noise(_SIZE, 48),
            "attn_norm.weight": 1 + noise(_SIZE),
            "ffn_norm.weight": 1 + noise(_SIZE),
            "post_attention_norm.weight": 0.3 + noise(_SIZE),
            "post_ffw_norm.weight": 0.3 + noise(_SIZE),
            "layer_output_scale.weight": np.ones(1),
        }
        arrays |= {f"blk.{index}.{key}": values for key, values in layer.items()}
    tensors: dict[str, Any] = {}
    if in_clusters:
        assert vocab_size % _CLUSTERS == 1
        order = random.permutation(vocab_size - 1).astype("<i4")
        arrays["token_embd.weight"] = arrays["token_embd.weight"][:-1]
        clusters = arrays["token_embd.weight"][order].reshape(_CLUSTERS, -1, _SIZE)
        arrays["masked_embd_centroids.weight"] = clusters.mean(axis=1) + noise(_CLUSTERS, _SIZE)
        as_bytes = order.view(np.uint8)
        tensors["masked_embd_ordering"] = LazyTensor(order.shape, QuantType.I32, lambda: iter([as_bytes]))
    own = {
        "general.architecture": "gemma4-assistant",
        "embedding_length": _SIZE,
        "embedding_length_out": wide,
        "block_count": len(_KINDS),
        "nextn_predict_layers": len(_KINDS),
        "attention.shared_kv_layers": len(_KINDS),
        "attention.head_count": _HEADS,
        "attention.head_count_kv": 1,
        "attention.sliding_window_pattern": list(_KINDS),
        "feed_forward_length": 48,
        "centroid_top_k": _NEAREST,
    } | {key.replace("__", "."): value for key, value in metadata.items()}
    for key, value in own.items():
        entries[key if key.startswith(("general.", "tokenizer.")) else f"gemma4-assistant.{key}"] = value
    tensors |= {key: (values.astype(np.float32), QuantType.F32) for key, values in arrays.items()}
    write_gguf(path, entries, tensors)
    return path
