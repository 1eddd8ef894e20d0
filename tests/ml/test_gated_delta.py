"""The gated delta net: the definition against transformers, and the same bits however it is cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from chaski.ml import CPUOptions, open_backend
from chaski.ml.recurrent_ops import CHUNK
from tests.backends import BACKENDS, FORMS, USUAL
from tests.foreign import NAMES

from .delta_plans import DeltaNet, Shape, Tokens, assert_one_answer

F32 = npt.NDArray[np.float32]

SHAPE = Shape()
SHAPES = [
    pytest.param(SHAPE, id="grouped"),
    pytest.param(Shape(tiled=True), id="tiled"),
    pytest.param(Shape(1, 3, 20, 80, taps=2), id="odd sizes"),
    pytest.param(Shape(2, 2, 32, 16, taps=3), id="a key head a head"),
]
PLACES = [("reference", "auto", 1), *((name, isa, 1) for name, isa in FORMS), (USUAL, "auto", 2)]


def net(backend: str = "reference", isa: str = "auto", threads: int = 1, shape: Shape = SHAPE) -> DeltaNet:
    return DeltaNet(open_backend(backend, CPUOptions(threads=threads, isa=isa)), shape)


def plain(shape: Shape, q: F32, k: F32, v: F32, tokens: Tokens) -> F32:
    """Compute the recurrence as in papers, in float64, with a state after every token."""
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
    """Sequences grow by any number of tokens, alone or together, lose tails, and reuse prefixes.

    The expected result is computed at once, alone, on one thread with the fastest kernels.
    """
    texts = [Tokens.random(shape, 230, seed) for seed in range(2)]
    expected = [net(backend, "auto", 1, shape).whole(text) for text in texts]
    assert_one_answer(net(backend, isa, threads, shape), texts, expected)


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


# Results of transformers 5.23's torch_recurrent_gated_delta_rule for the tokens of `counted`: the first two
# columns of heads 0 and 3, for the tokens 0, 31, 32 and 99.
STORED = [
    [-0.003433101, 0.01232021, 0.0004654583, -0.0004845513],
    [-0.04920821, 0.01742056, 0.1554785, -0.04952478],
    [0.03143276, -0.0112368, -0.1640575, 0.05235419],
    [0.08722194, -0.02771886, -0.2324671, 0.07019598],
]


def counted(count: int) -> Tokens:
    """Return tokens that any program can reproduce, without random numbers."""
    index = np.arange(count * SHAPE.channels, dtype=np.float64).reshape(count, -1)
    gates = np.arange(count * SHAPE.value_heads, dtype=np.float64).reshape(count, -1)
    return Tokens(
        np.sin(index * 0.37).astype(np.float32),
        -np.exp(3 * np.sin(gates) - 3).astype(np.float32),
        (0.5 + 0.5 * np.cos(gates * 1.7)).astype(np.float32),
    )


def test_values_of_transformers() -> None:
    found = net().whole(counted(100)).reshape(100, SHAPE.value_heads, SHAPE.value_size)
    some = found[[0, 31, 32, 99]][:, [0, 3], :2].reshape(4, -1)
    np.testing.assert_allclose(some, STORED, rtol=1e-5, atol=1e-6)


@pytest.mark.oracle
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_both_rules_of_transformers(backend: str, shape: Shape) -> None:
    tokens = Tokens.random(shape, 150)
    expected = of_transformers(net(backend, shape=shape), shape, tokens)
    found = net(backend, shape=shape).whole(tokens).reshape(expected[0].shape)
    np.testing.assert_allclose(found, expected[0], atol=2e-6)
    np.testing.assert_allclose(found, expected[1], atol=1e-5)


def of_transformers(delta: DeltaNet, shape: Shape, tokens: Tokens) -> list[F32]:
    """Return the results of transformers' recurrent and chunked rules for the rows of `delta`."""
    torch = pytest.importorskip("torch")
    name = "transformers.models.qwen3_next.modeling_qwen3_next"
    rules = pytest.importorskip(name)
    rows = {}
    for result in "qkv":
        delta.cache.remove(0, 0)
        rows[result] = delta.whole(tokens, result=result).reshape(len(tokens.x), -1, shape_of(shape, result))
    if shape.tiled:
        group = shape.value_heads // shape.key_heads
        rows |= {name: np.tile(rows[name], (1, group, 1)) for name in "qk"}
    rows["q"] = rows["q"] * np.float32(shape.key_size**0.5)  # the rule scales it itself
    arguments = [torch.from_numpy(np.ascontiguousarray(rows[name]))[None] for name in "qkv"]
    gates = {"g": torch.from_numpy(tokens.log_decay)[None], "beta": torch.from_numpy(tokens.beta)[None]}
    return [
        rule(*arguments, **gates)[0][0].numpy()
        for rule in (rules.torch_recurrent_gated_delta_rule, rules.torch_chunk_gated_delta_rule)
    ]


@pytest.mark.parametrize(
    "segments",
    [
        pytest.param([(0, 3, 0, 0, 0, 0, 0)], id="a token is missing"),
        pytest.param([(0, 5, 0, 0, 0, 0, 0)], id="a token too many"),
        pytest.param([(0, 2, 0, 0, 0, 0, 0), (1, 4, 0, 1, 0, 0, 0)], id="a token twice"),
        pytest.param([(0, 4, -1, 0, 0, 0, 0)], id="a position below 0"),
        pytest.param([(0, 4, 0, 3, 0, 0, 0)], id="no such cell"),
        pytest.param([(0, 4, 0, 0, 99, 0, 0)], id="no such state to read"),
        pytest.param([(0, 4, CHUNK - 3, 0, 0, 99, 0)], id="no such state to write"),
        pytest.param([(0, 4, CHUNK - 3, 0, 0, 0, 0)], id="the state of a boundary has no place"),
        pytest.param([(0, 4, CHUNK - 4, 0, 0, 1, 0)], id="a place for a boundary that is not passed"),
        pytest.param([(0, 4, CHUNK - 3, 0, 1, 1, 0)], id="a state is read and written"),
        pytest.param([(0, 4, CHUNK - 8, 0, 0, 0, -CHUNK)], id="a state before the first token"),
        pytest.param([(0, 4, CHUNK + 8, 0, 0, 0, 1)], id="a state at no boundary"),
        pytest.param([(0, 4, CHUNK - 8, 0, 1, 0, CHUNK)], id="a state behind the tokens"),
        pytest.param([(0, 4, CHUNK + 1, 0, 1, 2, 0)], id="a state too far before the tokens"),
        pytest.param([], id="none"),
    ],
)
def test_segments_that_do_not_fit_are_refused(segments: list[tuple[int, ...]]) -> None:
    delta = net(USUAL)
    with pytest.raises(ValueError, match="segments"):
        delta.launch(Tokens.random(SHAPE, 4), np.array(segments, np.int32).reshape(-1, 7))
    delta.launch(Tokens.random(SHAPE, 4), np.array([(0, 4, CHUNK, 0, 0, 1, 0)], np.int32))
