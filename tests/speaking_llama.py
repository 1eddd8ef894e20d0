"""A Llama file that writes set answers: one token follows each token, whatever came before.

It runs like any other model, so tests include prompt, tokens, logits, sampler and parser. Embeddings are unit
vectors, layers add nothing, and the output matrix points from each token to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from tests.tiny_llama import byte_symbols

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
"""No text follows the last message, so its last token determines the answer."""

_HEAD = 64
_FFN = 32
_CERTAIN = 4.0  # times the root of the width: no temperature makes another token likely
_UNLIKELY = 0.1
# If a grammar allows none of its words, it prefers letters and signs to spaces.
_PRINTABLE = slice(0x21, 0x7F)
_NORMAL, _CONTROL, _USER = 1, 3, 4


def write_speaking_llama(
    path: Path, sayings: Mapping[str, Sequence[str]], template: str = TEMPLATE, **metadata: object
) -> Path:
    """Write a model that answers each text with the pieces after it, one token each, and ends.

    A piece may be part of several answers only if the same text follows. It writes no other text. `metadata`,
    with `__` for `.` in its keys, adds or replaces entries.
    """
    end = "<|end|>"
    chains = [(cue, *pieces, end) for cue, pieces in sayings.items()]
    added = list(dict.fromkeys(piece for chain in chains for piece in chain))
    tokens = [*byte_symbols(), "th", *added]
    ids = {token: index for index, token in enumerate(tokens)}
    width = -(-len(tokens) // _HEAD) * _HEAD
    entries: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "Speaking",
        "llama.context_length": 1024,
        "llama.embedding_length": width,
        "llama.feed_forward_length": _FFN,
        "llama.block_count": 1,
        "llama.attention.head_count": width // _HEAD,
        "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.token_type": [
            _NORMAL if index <= 256 else _CONTROL if token == end else _USER
            for index, token in enumerate(tokens)
        ],
        "tokenizer.ggml.eos_token_id": ids[end],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    }
    entries |= {key.replace("__", "."): value for key, value in metadata.items()}
    follows = dict.fromkeys(range(len(tokens)), ids[end])
    for token, after in (pair for chain in chains for pair in pairwise(chain)):
        assert follows[ids[token]] in (ids[end], ids[after]), f"{token!r} is followed by two"
        follows[ids[token]] = ids[after]
    write_gguf(path, entries, _tensors(width, follows))
    return path


def _tensors(width: int, follows: Mapping[int, int]) -> dict[str, tuple[np.ndarray, QuantType]]:
    embeddings = np.eye(len(follows), width, dtype=np.float32)
    output = np.zeros((len(follows), width), np.float32)
    output[_PRINTABLE] = _UNLIKELY
    for token, after in follows.items():
        output[after, token] = _CERTAIN
    shapes = {
        "attn_q": (width, width),
        "attn_k": (_HEAD, width),
        "attn_v": (_HEAD, width),
        "attn_output": (width, width),
        "ffn_gate": (_FFN, width),
        "ffn_up": (_FFN, width),
        "ffn_down": (width, _FFN),
    }
    matrices = {f"blk.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    matrices |= {"token_embd.weight": embeddings, "output.weight": output}
    norms = ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")
    vectors = {f"{name}.weight": np.ones(width, np.float32) for name in norms}
    return {name: (array, QuantType.F32) for name, array in (matrices | vectors).items()}
