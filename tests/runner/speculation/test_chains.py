"""The proposals of blocks in a chain against a definition in NumPy, of a dense model with three blocks.

The definition computes the blocks of all tokens from the beginning; chaski reads stored keys and values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.model.arch.glm4moe import Model
from chaski.model.chain_program import ChainProgram
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.speculator import PayingLength
from tests.families import converted

SIZE, HEADS, KV_HEADS, HEAD, FFN, TURNED, LAYERS, BLOCKS = 32, 4, 2, 12, 44, 6, 2, 3
BASE, EPS = 10000.0, 1e-5
MORE = 2
PROMPT = np.random.default_rng(2).integers(5, 300, 20).tolist()
Weights = dict[str, np.ndarray]


def weights() -> Weights:
    random = np.random.default_rng(7)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    def norm() -> np.ndarray:
        return (1 + 0.2 * random.standard_normal(SIZE)).astype(np.float32)

    found = {"token_embd": matrix(304, SIZE), "output": matrix(304, SIZE), "output_norm": norm()}
    for index in range(LAYERS + BLOCKS):
        layer = {
            "attn_norm": norm(),
            "attn_q": matrix(HEADS * HEAD, SIZE),
            "attn_k": matrix(KV_HEADS * HEAD, SIZE),
            "attn_v": matrix(KV_HEADS * HEAD, SIZE),
            "attn_output": matrix(SIZE, HEADS * HEAD),
            "post_attention_norm": norm(),
            "ffn_gate": matrix(FFN, SIZE),
            "ffn_up": matrix(FFN, SIZE),
            "ffn_down": matrix(SIZE, FFN),
        }
        if index >= LAYERS:
            layer |= {"nextn.eh_proj": matrix(SIZE, 2 * SIZE), "nextn.enorm": norm(), "nextn.hnorm": norm()}
            layer["nextn.shared_head_norm"] = norm()
        found |= {f"blk.{index}.{name}": values for name, values in layer.items()}
    return found


@pytest.fixture(scope="module")
def known() -> Weights:
    return weights()


@pytest.fixture(scope="module")
def path(known: Weights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chains") / "model.gguf"
    with open_gguf(converted("glm4moe/usual")) as file:
        metadata: dict[str, Any] = dict(file.metadata)
    metadata |= {
        "glm4moe.block_count": LAYERS + BLOCKS,
        "glm4moe.nextn_predict_layers": BLOCKS,
        "glm4moe.leading_dense_block_count": LAYERS,
        "glm4moe.rope.freq_base": BASE,
        "glm4moe.rope.dimension_count": TURNED,
        "glm4moe.attention.layer_norm_rms_epsilon": EPS,
    }
    write_gguf(path, metadata, {f"{name}.weight": (each, QuantType.F32) for name, each in known.items()})
    return path


def normed(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def turned(x: np.ndarray) -> np.ndarray:
    """Rotate the first elements of heads (n, heads, size), whose pairs are half of them apart."""
    half = TURNED // 2
    angles = np.arange(len(x))[:, None] * BASE ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    a, b = x[..., :half], x[..., half:TURNED]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., TURNED:]], -1)


def layer(known: Weights, index: int, x: np.ndarray, first: int = 0) -> np.ndarray:
    """Return the states after a layer; no token sees the tokens before `first`, except those themselves."""
    w = {name.removeprefix(f"blk.{index}."): each for name, each in known.items()}
    h, n = normed(x, w["attn_norm"]), len(x)
    q = turned((h @ w["attn_q"].T).reshape(n, HEADS, HEAD))
    k = turned((h @ w["attn_k"].T).reshape(n, KV_HEADS, HEAD))
    v = (h @ w["attn_v"].T).reshape(n, KV_HEADS, HEAD)
    k, v = (np.repeat(each, HEADS // KV_HEADS, 1) for each in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) / HEAD**0.5
    at = np.arange(n)
    is_seen = (at[None] <= at[:, None]) & ((at[None] >= first) | (at[None] == at[:, None]))
    scores = np.where(is_seen, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    x = x + np.einsum("hqk,khd->qhd", shares, v).reshape(n, -1) @ w["attn_output"].T
    h = normed(x, w["post_attention_norm"])
    gate = h @ w["ffn_gate"].T
    return x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T


def proposed(known: Weights, tokens: list[int], is_chained: bool) -> list[int]:
    """Return the token of each block after the tokens, the last of which the model has not computed.

    In a chain, the last block proposes `MORE` tokens by its own states.
    """
    x = known["token_embd"][tokens[:-1]].astype(np.float64)
    for index in range(LAYERS):
        x = layer(known, index, x)
    own = before = normed(x, known["output_norm"])  # of all tokens but the last
    found = list(tokens)
    for block in range(BLOCKS):
        w = {name.removeprefix(f"blk.{LAYERS + block}.nextn."): each for name, each in known.items()}
        if not is_chained:
            before = np.concatenate([np.zeros((block, SIZE)), own])
        states = np.concatenate([np.zeros((1, SIZE)), before])
        embedded = known["token_embd"][found]
        joined = np.concatenate([normed(embedded, w["enorm"]), normed(states, w["hnorm"])], -1)
        x = layer(known, LAYERS + block, joined @ w["eh_proj"].T, first=block + 1)
        read, before = states, normed(x, w["shared_head_norm"])
        found.append(int((before[-1] @ known["output"].T).argmax()))
    for _ in range(MORE if is_chained else 0):
        read = np.concatenate([read, before[-1:]])
        embedded = known["token_embd"][found]
        joined = np.concatenate([normed(embedded, w["enorm"]), normed(read, w["hnorm"])], -1)
        x = layer(known, LAYERS + BLOCKS - 1, joined @ w["eh_proj"].T, first=BLOCKS)
        before = normed(x, w["shared_head_norm"])
        found.append(int((before[-1] @ known["output"].T).argmax()))
    return found[len(tokens) :]


@pytest.mark.parametrize("is_chained", [True, False])
def test_proposals_are_those_of_the_definition(
    known: Weights, path: Path, is_chained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "is_chained", is_chained)
    monkeypatch.setattr(NgramSpeculator, "propose", lambda self: [])
    monkeypatch.setattr(PayingLength, "current", lambda *arguments: BLOCKS + MORE)
    asked = list[Any]()
    propose = ChainProgram.propose

    def recording(self: ChainProgram, requests: Any) -> None:
        propose(self, requests)
        asked.extend((each.position, list(each.proposed)) for each in requests)

    monkeypatch.setattr(ChainProgram, "propose", recording)
    with chaski.load(path, context=128, kv_type="f32", threads=1, num_batch=7) as model:
        answer = model.generate(PROMPT, temperature=0, num_predict=12, ignore_eos=True)
    text = [*PROMPT, *answer.token_ids]
    assert len(asked) > 5
    for position, tokens in asked:
        wanted = proposed(known, text[: position + 1], is_chained)
        assert tokens == wanted[: len(tokens)]
    assert max(len(tokens) for _, tokens in asked) == BLOCKS + MORE * is_chained
