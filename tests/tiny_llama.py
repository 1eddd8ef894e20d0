"""A random Llama file of 400 kB, written when the tests begin: it runs like any other model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType

HIDDEN, LAYERS, HEADS, KV_HEADS, FFN = 64, 2, 4, 2, 96
CONTEXT = 256
BOS, END, EOT = 262, 263, 264
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

_MERGES = ["t h", "th e", "i n", "Ġ the", "a n", "e r"]
_SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]


def write_tiny_llama(
    path: Path,
    chat_template: str | None = TEMPLATE,
    matrices: QuantType = QuantType.F32,
    memory: float = 1.0,
    layers: int = LAYERS,
    tokenizer: Mapping[str, Any] | None = None,
    **metadata: object,
) -> Path:
    """Write the model to `path`, its matrices in one type.

    `memory` scales the output of attention: with little of it, nearly always the same token follows a token.
    `tokenizer` contains the entries of another vocabulary. `metadata`, with `__` for `.` in its keys, adds or
    replaces entries; None removes one.
    """
    tokens = [*byte_symbols(), *(merge.replace(" ", "") for merge in _MERGES), *_SPECIAL]
    entries: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FFN,
        "llama.block_count": layers,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": _MERGES,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - len(_SPECIAL)) + [3] * len(_SPECIAL),
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.eot_token_id": EOT,
        "tokenizer.ggml.add_bos_token": True,
    }
    if tokenizer is not None:
        entries = {key: value for key, value in entries.items() if not key.startswith("tokenizer.")}
        entries |= tokenizer
        tokens = tokenizer["tokenizer.ggml.tokens"]
    if chat_template is not None:
        entries["tokenizer.chat_template"] = chat_template
    entries |= {key.replace("__", "."): value for key, value in metadata.items()}
    entries = {key: value for key, value in entries.items() if value is not None}
    arrays = _tensors(len(tokens), layers)
    for name, array in arrays.items():
        if name.endswith("attn_output.weight"):
            array *= memory
    types = {name: matrices if array.ndim == 2 else QuantType.F32 for name, array in arrays.items()}
    write_gguf(path, entries, {name: (array, types[name]) for name, array in arrays.items()})
    return path


def _tensors(vocab_size: int, layers: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * 1.5 / columns**0.5).astype(np.float32)

    kv = KV_HEADS * HIDDEN // HEADS
    tensors = {"token_embd.weight": random.standard_normal((vocab_size, HIDDEN)).astype(np.float32)}
    for layer in range(layers):
        shapes = {
            "attn_q": (HIDDEN, HIDDEN),
            "attn_k": (kv, HIDDEN),
            "attn_v": (kv, HIDDEN),
            "attn_output": (HIDDEN, HIDDEN),
            "ffn_gate": (FFN, HIDDEN),
            "ffn_up": (FFN, HIDDEN),
            "ffn_down": (HIDDEN, FFN),
        }
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{norm}.weight"] = np.ones(HIDDEN, np.float32)
    tensors["output_norm.weight"] = np.ones(HIDDEN, np.float32)
    tensors["output.weight"] = matrix(vocab_size, HIDDEN)
    return tensors


def byte_symbols() -> list[str]:
    """Return GPT-2's 256 symbols of bytes: printable ones unchanged, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
