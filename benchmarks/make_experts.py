"""Make GGUF files with the shapes of mixture-of-experts models, with few layers and about 2 GB.

    python -m benchmarks.make_experts qwen3-30b-a3b gpt-oss-20b
    python -m benchmarks.compare --model benchmarks/files/gpt-oss-20b.gguf

Layers have the sizes of the real models, and weights are random, so every token chooses different experts.
In a shape whose name ends in `-skewed`, the router prefers some: a quarter of them gets 59 % of the tokens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.random_blocks import random_rows
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.quant import QuantType

__all__ = ["SHAPES", "make"]

_VOCAB = 4096
_ROWS_AT_ONCE = 4096

# Metadata after "arch.", with all sizes.
_QWEN: dict[str, int | float | str] = {
    "block_count": 5,
    "embedding_length": 2048,
    "feed_forward_length": 6144,
    "attention.head_count": 32,
    "attention.head_count_kv": 4,
    "attention.key_length": 128,
    "rope.freq_base": 1e6,
    "expert_count": 128,
    "expert_used_count": 8,
    "expert_feed_forward_length": 768,
}
_GPT_OSS: dict[str, int | float | str] = {
    "block_count": 4,
    "embedding_length": 2880,
    "feed_forward_length": 2880,
    "attention.head_count": 64,
    "attention.head_count_kv": 8,
    "attention.key_length": 64,
    "attention.sliding_window": 128,
    "rope.freq_base": 150000.0,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 32.0,
    "rope.scaling.original_context_length": 4096,
    "expert_count": 32,
    "expert_used_count": 4,
    "expert_feed_forward_length": 2880,
}
# Standard deviation of the logarithm of the length of a router's rows, in skewed shapes.
_SKEW = 0.4
# Architecture, metadata, type of matrices, type of experts.
SHAPES = {
    "qwen3-30b-a3b": ("qwen3moe", _QWEN, QuantType.Q4_K, QuantType.Q4_K),
    "qwen3-30b-a3b-skewed": ("qwen3moe", _QWEN, QuantType.Q4_K, QuantType.Q4_K),
    "gpt-oss-20b": ("gpt-oss", _GPT_OSS, QuantType.Q8_0, QuantType.MXFP4),
}


def make(name: str, path: Path) -> None:
    """Write the shape `name` to `path`."""
    arch, sizes, matrix, expert = SHAPES[name]
    rng = np.random.Generator(np.random.SFC64(1))
    metadata: dict[str, Any] = {
        "general.architecture": arch,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<{i}>" for i in range(3, _VOCAB))],
        "tokenizer.ggml.token_type": [2, 3, 3, *[1] * (_VOCAB - 3)],
        "tokenizer.ggml.scores": [0.0] * _VOCAB,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        f"{arch}.context_length": 4096,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-6,
        f"{arch}.attention.value_length": sizes["attention.key_length"],
    }
    metadata |= {f"{arch}.{key}": value for key, value in sizes.items()}
    tensors = {}
    for tensor, shape in _tensors(arch, {key: int(v) for key, v in sizes.items() if isinstance(v, int)}):
        is_plain = len(shape) == 1 or tensor.endswith(".bias") or "gate_inp" in tensor
        kind = QuantType.F32 if is_plain else expert if "_exps" in tensor else matrix
        is_skewed = name.endswith("-skewed") and tensor.endswith("gate_inp.weight")
        tensors[tensor] = _random(shape, kind, rng, _SKEW if is_skewed else 0.0)
    write_gguf(path, metadata, tensors)


def _tensors(arch: str, sizes: dict[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, experts = sizes["embedding_length"], sizes["expert_count"]
    head, ffn = sizes["attention.key_length"], sizes["expert_feed_forward_length"]
    q, kv = sizes["attention.head_count"] * head, sizes["attention.head_count_kv"] * head
    yield from (("token_embd.weight", (_VOCAB, hidden)), ("output.weight", (_VOCAB, hidden)))
    yield "output_norm.weight", (hidden,)
    matrices: dict[str, tuple[int, ...]] = {
        "attn_q": (q, hidden),
        "attn_k": (kv, hidden),
        "attn_v": (kv, hidden),
        "attn_output": (hidden, q),
        "ffn_gate_inp": (experts, hidden),
        "ffn_gate_exps": (experts, ffn, hidden),
        "ffn_up_exps": (experts, ffn, hidden),
        "ffn_down_exps": (experts, hidden, ffn),
    }
    vectors = {"attn_norm": hidden, "ffn_norm": hidden, "attn_q_norm": head, "attn_k_norm": head}
    if arch == "gpt-oss":
        sinks = sizes["attention.head_count"]
        vectors = {"attn_norm": hidden, "post_attention_norm": hidden, "attn_sinks": sinks}
    for block in (f"blk.{layer}" for layer in range(sizes["block_count"])):
        yield from ((f"{block}.{name}.weight", shape) for name, shape in matrices.items())
        yield from ((f"{block}.{name}.weight", (size,)) for name, size in vectors.items())
        if arch == "gpt-oss":
            yield from ((f"{block}.{name}.bias", shape[:-1]) for name, shape in matrices.items())


def _random(
    shape: tuple[int, ...], kind: QuantType, rng: np.random.Generator, skew: float = 0.0
) -> LazyTensor:
    rows = int(np.prod(shape[:-1]))

    def chunks() -> Iterator[NDArray[np.uint8]]:
        if kind is QuantType.F32:
            values = rng.standard_normal(shape) / shape[-1] ** 0.5
            if skew:
                values *= np.exp(skew * rng.standard_normal((shape[0], 1)))
            yield values.astype(np.float32).reshape(-1).view(np.uint8)
            return
        for begin in range(0, rows, _ROWS_AT_ONCE):
            count = min(_ROWS_AT_ONCE, rows - begin)
            yield random_rows(kind, count, shape[-1], rng).reshape(-1).view(np.uint8)

    return LazyTensor(shape, kind, chunks)


if __name__ == "__main__":
    folder = Path(__file__).parent / "files"
    folder.mkdir(exist_ok=True)
    for wanted in sys.argv[1:] or SHAPES:
        make(wanted, folder / f"{wanted}.gguf")
