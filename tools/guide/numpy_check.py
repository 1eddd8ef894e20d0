"""Does the written file mean what was trained? `python -m tools.guide.numpy_check [FILE]`.

An independent reading: metadata and tensors by the gguf package, the tokenizer rebuilt from the metadata, the
file's own template, and the llama architecture written out in NumPy. Prints greedy answers to the tuning
wording of every fifth topic and how many are the intended text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import jinja2
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE

from tools.guide.guide_file import read_weights
from tools.guide.topics import load_topics
from tools.guide.vocabulary import with_pieces

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GuideFile:
    """What a file says, and nothing from the training code but the rule that "llama-bpe" names."""

    weights: dict[str, Array]
    field: Callable[[str], object]

    @classmethod
    def read(cls, path: Path) -> GuideFile:
        reader = gguf.GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        return cls(read_weights(path), fields.__getitem__)

    def number(self, name: str) -> int:
        value = self.field(f"llama.{name}")
        assert isinstance(value, int)
        return value

    def tokenizer(self) -> Tokenizer:
        tokens, merges, kinds = (
            self.field(f"tokenizer.ggml.{key}") for key in ("tokens", "merges", "token_type")
        )
        assert isinstance(tokens, list)
        assert isinstance(merges, list)
        assert isinstance(kinds, list)
        assert self.field("tokenizer.ggml.pre") == "llama-bpe"
        pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
        ids = {token: index for index, token in enumerate(tokens)}
        tokenizer = with_pieces(BPE(ids, pairs, ignore_merges=True))
        control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == gguf.TokenType.CONTROL]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
        return tokenizer

    def prompt(self, question: str) -> str:
        tokens, bos = self.field("tokenizer.ggml.tokens"), self.field("tokenizer.ggml.bos_token_id")
        assert isinstance(tokens, list)
        assert isinstance(bos, int)
        template = jinja2.Template(str(self.field("tokenizer.chat_template")))
        messages = [{"role": "user", "content": question}]
        return template.render(messages=messages, bos_token=tokens[bos], add_generation_prompt=True)


def next_token(file: GuideFile, ids: list[int]) -> int:
    """The most likely token after `ids`, by the textbook and without a cache."""
    w, heads, kv_heads = (
        file.weights,
        file.number("attention.head_count"),
        file.number("attention.head_count_kv"),
    )
    x = w["token_embd.weight"][ids]  # (tokens, hidden)
    for layer in range(file.number("block_count")):
        p = {name: w[f"blk.{layer}.{name}.weight"] for name in _LAYER}
        h = _norm(file, x, p["attn_norm"])
        q, k, v = (
            _heads(h @ p[n].T, c) for n, c in (("attn_q", heads), ("attn_k", kv_heads), ("attn_v", kv_heads))
        )
        q, k = _rotate(file, q), _rotate(file, k)
        k, v = (np.repeat(each, heads // kv_heads, axis=0) for each in (k, v))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        attended = (shares / shares.sum(-1, keepdims=True)) @ v  # (heads, tokens, head_size)
        x = x + attended.transpose(1, 0, 2).reshape(len(ids), -1) @ p["attn_output"].T
        h = _norm(file, x, p["ffn_norm"])
        gate = h @ p["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ p["ffn_up"].T)) @ p["ffn_down"].T
    return int(
        (
            _norm(file, x[-1:], w["output_norm.weight"]) @ w.get("output.weight", w["token_embd.weight"]).T
        ).argmax()
    )


_LAYER = (
    "attn_norm",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_output",
    "ffn_norm",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
)


def _norm(file: GuideFile, x: Array, weight: Array) -> Array:
    eps = file.field("llama.attention.layer_norm_rms_epsilon")
    assert isinstance(eps, float)
    scaled: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
    return scaled


def _heads(x: Array, count: int) -> Array:
    return x.reshape(len(x), count, -1).transpose(1, 0, 2)


def _rotate(file: GuideFile, x: Array) -> Array:
    """Normal order: dimensions 2i and 2i + 1 of a head are one pair."""
    size, base = file.number("rope.dimension_count"), file.field("llama.rope.freq_base")
    assert isinstance(base, float)
    angles = np.outer(np.arange(x.shape[1]), base ** (-np.arange(0, size, 2) / size))
    turned = np.empty_like(x)
    turned[..., 0::2] = x[..., 0::2] * np.cos(angles) - x[..., 1::2] * np.sin(angles)
    turned[..., 1::2] = x[..., 0::2] * np.sin(angles) + x[..., 1::2] * np.cos(angles)
    return turned


def answer(file: GuideFile, tokenizer: Tokenizer, question: str) -> str:
    """The greedy answer to one question."""
    ids: list[int] = tokenizer.encode(file.prompt(question)).ids
    start, end = len(ids), file.field("tokenizer.ggml.eos_token_id")
    while (token := next_token(file, ids)) != end and len(ids) < start + 80:
        ids.append(token)
    return tokenizer.decode(ids[start:])


def main() -> None:
    bundled = Path(__file__).parents[2] / "chaski/models/guide.gguf"
    file = GuideFile.read(Path(sys.argv[1]) if len(sys.argv) > 1 else bundled)
    tokenizer = file.tokenizer()
    cases = [(topic.tuning, topic.answer) for topic in load_topics()[::5]]
    right = 0
    for question, intended in cases:
        given = answer(file, tokenizer, question)
        right += given == intended
        print(f"{'=' if given == intended else '!'} {question} -> {given}")
    print(f"{right} of {len(cases)} are the intended text")


if __name__ == "__main__":
    main()
