"""The gated delta net: the definition against numbers of transformers, and one answer however it is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chaski.ml import CPUOptions, open_backend
from chaski.ml.recurrent_ops import CHUNK
from tests.foreign import NAMES

from .delta_plans import DeltaNet, Shape, Tokens

F32 = npt.NDArray[np.float32]

SHAPE = Shape()
SHAPES = [
    pytest.param(SHAPE, id="grouped"),
    pytest.param(Shape(tiled=True), id="tiled"),
    pytest.param(Shape(1, 3, 20, 80, taps=2), id="odd sizes"),
    pytest.param(Shape(2, 2, 32, 16, taps=3), id="a key head a head"),
]
PLACES = [("reference", "auto", 1)]


def net(backend: str = "reference", isa: str = "auto", threads: int = 1, shape: Shape = SHAPE) -> DeltaNet:
    return DeltaNet(open_backend(backend, CPUOptions(threads=threads, isa=isa)), shape)


def plain(shape: Shape, q: F32, k: F32, v: F32, tokens: Tokens) -> F32:
    """The recurrence as papers write it, in float64, with a state after every token."""
    heads = np.arange(shape.value_heads)
    grouped = heads // (len(heads) // shape.key_heads)
    key_heads = heads % shape.key_heads if shape.tiled else grouped
    state = np.zeros((shape.value_heads, shape.key_size, shape.value_size))
    y = np.empty(v.shape)
    for token in range(len(v)):
        key = k[token, key_heads].astype(np.float64)
        state *= np.exp(tokens.log_decay[token].astype(np.float64))[:, None, None]
        error = v[token] - np.einsum("hkv,hk->hv", state, key)
        state += np.einsum("hk,hv->hkv", key, error * tokens.beta[token][:, None])
        y[token] = np.einsum("hkv,hk->hv", state, q[token, key_heads])
    return y.astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("backend", "isa", "threads"), PLACES)
def test_chunks_compute_the_plain_recurrence(backend: str, isa: str, threads: int, shape: Shape) -> None:
    tokens = Tokens.random(shape, 150)
    delta = net(backend, isa, threads, shape)
    found = {}
    for result in ("q", "k", "v", "y"):
        delta.cache.remove(0, 0)
        found[result] = delta.whole(tokens, result=result).reshape(150, -1, shape_of(shape, result))
    np.testing.assert_allclose(
        found["y"], plain(shape, found["q"], found["k"], found["v"], tokens), atol=2e-6
    )


def shape_of(shape: Shape, result: str) -> int:
    return shape.key_size if result in "qk" else shape.value_size


def in_parts(delta: DeltaNet, tokens: Tokens, counts: Sequence[int]) -> F32:
    ends = np.cumsum(counts).tolist()
    return np.concatenate(
        [delta.whole(tokens[end - count : end]) for count, end in zip(counts, ends, strict=True)]
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("backend", "isa", "threads"), PLACES)
def test_one_answer_whatever_the_schedule(backend: str, isa: str, threads: int, shape: Shape) -> None:
    """Sequences grow by any number of tokens, alone or together, lose tails, and take over prefixes."""
    random = np.random.default_rng(5)
    delta = net(backend, isa, threads, shape)
    texts = [Tokens.random(shape, 230, seed) for seed in range(2)]
    expected = [net(backend, isa, 1, shape).whole(text) for text in texts]
    source = [0, 1, 0]  # the text that a sequence computes
    for _ in range(60):
        growing = []
        for sequence in random.permutation(3)[: random.integers(1, 4)].tolist():
            length = delta.cache.length(sequence)
            match random.integers(8):
                case 0:
                    begin = int(random.integers(length + 1))
                    kept = delta.cache.resumable(sequence, begin)
                    delta.cache.remove(sequence, begin)
                    assert delta.cache.length(sequence) == kept
                case 1:
                    delta.cache.remove(sequence, max(length - int(random.integers(8)), 0))
                case 2:
                    other = int(random.integers(3))
                    length = int(random.integers(delta.cache.length(other) + 1))
                    delta.cache.copy_prefix(other, sequence, length)
                    source[sequence] = source[other]
                case _:
                    count = int(random.choice([1, 1, 2, 5, 31, 33, 90]))
                    growing.append((sequence, length, min(length + count, 230)))
        parts = [(s, texts[source[s]][begin:end]) for s, begin, end in growing if end > begin]
        if not parts or sum(len(part.x) for _, part in parts) > 256:
            continue
        at = {sequence: delta.cache.length(sequence) for sequence, _ in parts}
        for (sequence, part), found in zip(parts, delta.forward(*parts), strict=True):
            begin = at[sequence]
            assert (found == expected[source[sequence]][begin : begin + len(part.x)]).all()


@pytest.mark.parametrize("dropped", [1, 7, CHUNK - 1, CHUNK])
def test_guesses_are_dropped_without_a_step_back(dropped: int) -> None:
    shape = SHAPE
    tokens = Tokens.random(shape, 128)
    expected = net().whole(tokens)
    for length in (5, CHUNK - 1, CHUNK, CHUNK + 3, 64, 90):
        delta = net()
        delta.whole(tokens[:length])
        delta.whole(Tokens.random(shape, dropped, 9))
        delta.cache.remove(0, length)
        assert delta.cache.length(0) == length
        assert (delta.whole(tokens[length:]) == expected[length:]).all()


@pytest.mark.parametrize("name", NAMES)
def test_another_machine_computes_the_same(name: str) -> None:
    shape = SHAPE
    tokens = Tokens.random(shape, 100)
    assert (in_parts(net(name), tokens, (10, 60, 30)) == net().whole(tokens)).all()
