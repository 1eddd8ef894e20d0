"""Types of few bits, computed natively and by the real llama.cpp.

Any bytes are valid codes of these types, so matrices are random with a reasonable scale. The exact numbers
are those that the native engine computes from the same weights as float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import UNSUPPORTED_TYPES, QuantType
from chaski.runner.channels.worker.client import Worker
from tests.native.matmul_rule import set_scales
from tests.rewriting import bytes_as
from tests.tiny_llama import write_tiny_llama

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

HIDDEN, LAYERS, HEADS, KV_HEADS = 256, 2, 4, 2
PRINTABLE = slice(0x21, 0x7F)
PROMPT = "the other end in the"
NEAR = 0.2  # both round activations to int8

NAMES = (
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"),
    *("TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "NVFP4"),
)


@dataclass(frozen=True)
class Pair:
    """The same model twice: `stored` in a type of few bits, `plain` in float32."""

    stored: Path
    plain: Path


@pytest.fixture(params=NAMES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    type = QuantType[request.param]
    with open_gguf(write_tiny_llama(tmp_path / "tiny.gguf")) as tiny:
        metadata = dict(tiny.metadata)
        vocab_size = tiny.tensors["token_embd.weight"].shape[0]
    for key in ("embedding_length", "feed_forward_length"):
        metadata[f"llama.{key}"] = HIDDEN
    kv = KV_HEADS * HIDDEN // HEADS
    rows = {"attn_q": HIDDEN, "attn_k": kv, "attn_v": kv, "attn_output": HIDDEN}
    rows |= {"ffn_gate": HIDDEN, "ffn_up": HIDDEN, "ffn_down": HIDDEN}
    shapes = {"token_embd.weight": (vocab_size, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}.weight": (count, HIDDEN) for name, count in rows.items()}
    random = np.random.default_rng(2)
    blocks = {name: random_blocks(type, shape[0], random) for name, shape in shapes.items()}
    norms = [f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm")]
    norms.append("output_norm")
    others: dict[str, np.ndarray] = {
        f"{name}.weight": np.ones(HIDDEN, np.float32) for name in (*norms, "output_norm")
    }
    output = np.zeros((vocab_size, HIDDEN), np.float32)  # it never ends, and writes only complete characters
    output[PRINTABLE] = random.standard_normal(output[PRINTABLE].shape) / HIDDEN**0.5
    others["output.weight"] = output
    same = {name: (array, QuantType.F32) for name, array in others.items()}
    stored = {name: bytes_as(found, type, shapes[name]) for name, found in blocks.items()}
    plain = {name: (dequantize(found, type, shapes[name]), QuantType.F32) for name, found in blocks.items()}
    write_gguf(tmp_path / "stored.gguf", metadata, {**stored, **same})
    write_gguf(tmp_path / "plain.gguf", metadata, {**plain, **same})
    return Pair(tmp_path / "stored.gguf", tmp_path / "plain.gguf")


def random_blocks(type: QuantType, rows: int, random: np.random.Generator) -> np.ndarray:
    """Return random codes for rows of HIDDEN elements, with a scale that keeps the size of products."""
    size = HIDDEN // type.block_size * type.block_bytes
    blocks = random.integers(0, 256, (rows, size), np.uint8).view(type.layout)
    if type.name.startswith("TQ"):
        blocks["qs"] = random.integers(0, 0xAA, blocks["qs"].shape, np.uint8)
    if type is QuantType.TQ2_0:  # code 3 is unused
        blocks["qs"] &= ~(blocks["qs"] >> 1) | 0xAA
    if type is QuantType.NVFP4:
        blocks["d"] = random.integers(0x10, 0x18, blocks["d"].shape)
    set_scales(blocks, type, lambda: 1.0)
    values = dequantize(blocks.view(np.uint8), type, (rows, HIDDEN))
    set_scales(blocks, type, lambda: 1.5 / HIDDEN**0.5 / float(values.std()))
    return blocks.view(np.uint8)


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")


def test_the_scores_are_as_exact_as_those_of_llama_cpp(pair: Pair, one_core: None) -> None:
    with Worker(pair.stored, engine="llama.cpp") as worker:
        assert worker.info().engine == "llama.cpp"
        answer = worker.generate(PROMPT, temperature=0, num_predict=16, logprobs=True, top_logprobs=5)
    exact, ours = (scores(path, answer.token_ids) for path in (pair.plain, pair.stored))
    assert len(answer.logprobs) == 16
    assert exact.std() > 0.5, "the model has opinions"
    chosen = [top for token in answer.logprobs for top in token.top_logprobs]
    places = np.repeat(np.arange(16), 5), [top.token_id for top in chosen]
    theirs = np.array([top.logprob for top in chosen])
    their_error, our_error = np.abs(theirs - exact[places]), np.abs(ours[places] - exact[places])
    assert their_error.max() < NEAR
    assert our_error.max() < NEAR
    assert our_error.mean() < 1.25 * their_error.mean()


def scores(path: Path, continuation: Sequence[int]) -> np.ndarray:
    """Return the logarithms of the probabilities of each token of a continuation of PROMPT, natively."""
    with chaski.load(path) as model:
        prompt = model.tokenize(PROMPT)
        logits = model.logits([*prompt, *continuation]).astype(np.float64)[len(prompt) - 1 : -1]
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def test_every_type_of_llama_cpp_is_known_here() -> None:
    import xllamacpp

    theirs = {name.removeprefix("GGML_TYPE_"): int(n) for name, n in xllamacpp.ggml_type.__members__.items()}
    known = {type.name: int(type) for type in QuantType}
    assert theirs.pop("COUNT") > max(theirs.values())
    assert {name: n for name, n in theirs.items() if n not in UNSUPPORTED_TYPES}.items() <= known.items()
