"""Attention: every storage type and form against its definition, with the same bits however it is cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from chaski import _native
from chaski.ml import BackendOptions, CPUOptions, Options
from chaski.ml.graph import DType
from tests.backends import CHOSEN
from tests.tiers import long_after

from .attending import F32, I32, Attender

TYPES = [
    (DType.F32, DType.F32),
    (DType.F16, DType.F16),
    (DType.BF16, DType.F16),
    (DType.I16, DType.I16),
    (DType.F32, DType.I16),
    (DType.Q8_0, DType.Q8_0),
    (DType.Q4_0, DType.Q4_0),
    (DType.Q8_0, DType.F16),
    (DType.F32, DType.Q4_0),
    (DType.Q3_0, DType.Q3_0),
    (DType.Q4_0, DType.Q3_0),
]
PLAIN_TYPES = [types for types in TYPES if not any(dtype.is_in_blocks for dtype in types)]
IMPLEMENTATIONS = [
    ("reference", ()),
    *(
        ("cpu", (BackendOptions(flash_attention=flash), CPUOptions(threads=2, isa=isa)))
        for isa in _native.isa_names()
        for flash in (True, False)
    ),
    *([(CHOSEN, ())] if CHOSEN else []),
]


def normal(*shape: int, seed: int = 0) -> F32:
    return np.random.default_rng((len(shape), *shape, seed)).standard_normal(shape).astype(np.float32)


def causal(history: int, tokens: int) -> npt.NDArray[np.int32]:
    """Return the spans of the last tokens of a history that starts at position 0."""
    return np.array([(0, history - tokens + i + 1, 0) for i in range(tokens)], np.int32)


def defined(
    q: F32, k: F32, v: F32, spans: npt.NDArray[np.int32], sinks: F32 | None, softcap: float
) -> npt.NDArray[np.float64]:
    """Return attention as matrices in float64 with a column for the sink: (tokens, heads · value size)."""
    tokens, heads, size = q.shape
    group = heads // k.shape[1]
    places = np.arange(len(k))
    hidden = (places < spans[:, :1]) | (places >= spans[:, 1:2])
    y = np.empty((tokens, heads, v.shape[2]))
    for head in range(heads):
        scores = q[:, head].astype(np.float64) @ k[:, head // group].T.astype(np.float64) / np.sqrt(size)
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        scores[hidden] = -np.inf
        column = np.full((tokens, 1), -np.inf if sinks is None else sinks[head])
        powers = np.exp(np.hstack([scores, column]))
        weights = powers / powers.sum(axis=1, keepdims=True)
        y[:, head] = weights[:, :-1] @ v[:, head // group]
    return y.reshape(tokens, -1)


@pytest.mark.parametrize(("backend", "options"), IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("softcap", long_after(1, [2.0, 0.0]))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "value_size"),
    [(1, 1, 16, 16), (6, 2, 20, 12), (8, 1, 64, 48), (20, 1, 32, 80)],
)
@pytest.mark.parametrize("history", [1, 63, 65, 300])
def test_the_definition(
    tmp_path: Path,
    backend: str,
    options: Sequence[Options],
    sinks: bool,
    softcap: float,
    heads: int,
    kv_heads: int,
    size: int,
    value_size: int,
    history: int,
) -> None:
    tokens = min(history, 9)
    q, k, v = (
        normal(tokens, heads, size),
        normal(history, kv_heads, size),
        normal(history, kv_heads, value_size),
    )
    spans = causal(history, tokens)
    window = spans[tokens // 2, 1] // 2
    spans[tokens // 2] = [window, spans[tokens // 2, 1], window]
    sink = normal(heads) * 3 if sinks else None
    cells = np.random.default_rng(1).permutation(1024)[:history].astype(np.int32)
    found = Attender(tmp_path, backend, q, k, v, cells, options=options, sinks=sink, softcap=softcap).attend(
        np.arange(tokens), spans
    )
    np.testing.assert_allclose(found, defined(q, k, v, spans, sink, softcap), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("backend", "options"), IMPLEMENTATIONS, ids=str)
@pytest.mark.parametrize("reach", [1, 4, 70, 400])
def test_numbers_for_distances(tmp_path: Path, backend: str, options: Sequence[Options], reach: int) -> None:
    """Tokens also see later ones, and one token has a window; distances beyond reach count as reach."""
    heads, kv_heads, size, history, tokens = 6, 2, 20, 300, 9
    q, k, v = (normal(n, h, size) for n, h in ((tokens, heads), (history, kv_heads), (history, kv_heads)))
    table = normal(heads, 2 * reach + 1)
    spans = np.array([(0, history, 0)] * tokens, np.int32)
    spans[4] = 100, 297, 100
    cells = np.random.default_rng(1).permutation(1024)[:history].astype(np.int32)
    attender = Attender(tmp_path, backend, q, k, v, cells, options=options, table=table)
    positions = history - tokens + np.arange(tokens)
    distances = np.clip(np.arange(history) - positions[:, None], -reach, reach) + reach
    expected = np.empty((tokens, heads, size))
    for head in range(heads):
        scores = q[:, head].astype(np.float64) @ k[:, head // 3].T / np.sqrt(size) + table[head][distances]
        scores[4, :100] = scores[4, 297:] = -np.inf
        weights = np.exp(scores)
        expected[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, head // 3]
    found = attender.attend(np.arange(tokens), spans)
    np.testing.assert_allclose(found, expected.reshape(tokens, -1), rtol=2e-5, atol=2e-5)


def test_numbers_by_hand(tmp_path: Path) -> None:
    """Two tokens with scores 0 and ln 3 weigh 1 : 3; a sink of ln 4 takes half."""
    q, k = np.ones((1, 1, 1), np.float32), np.array([0, np.log(3)], np.float32).reshape(2, 1, 1)
    v = np.array([8, 16], np.float32).reshape(2, 1, 1)
    cells = np.array([5, 2], np.int32)
    for backend, options in IMPLEMENTATIONS:
        for sinks, softcap, expected in (
            (None, 0.0, 14.0),
            (np.log(np.array([4], np.float32)), 0.0, 7.0),
            (
                None,
                0.5,
                (8 + 16 * np.exp(0.5 * np.tanh(2 * np.log(3)))) / (1 + np.exp(0.5 * np.tanh(2 * np.log(3)))),
            ),
        ):
            attender = Attender(
                tmp_path, backend, q, k, v, cells, options=options, sinks=sinks, softcap=softcap
            )
            np.testing.assert_allclose(attender.attend([0], [(0, 2, 0)]), [[expected]], rtol=1e-6)


@pytest.mark.parametrize("isa", _native.isa_names())
@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(2, 2, 32), (8, 2, 64), (24, 1, 96)])
def test_every_type_is_near_the_reference(
    tmp_path: Path, isa: str, types: tuple[DType, DType], heads: int, kv_heads: int, size: int
) -> None:
    history, tokens = 330, 5
    q, k, v = (normal(n, h, size) for n, h in ((tokens, heads), (history, kv_heads), (history, kv_heads)))
    cells = (np.arange(history, dtype=np.int32) + 7) % 1024
    expected, found = (
        Attender(
            tmp_path, backend, q, k, v, cells, types=types, options=[CPUOptions(threads=2, isa=name)]
        ).attend(np.arange(tokens), causal(history, tokens))
        for backend, name in (("reference", "auto"), ("cpu", isa))
    )
    if types[0].is_in_blocks:
        # The query is rounded to eight bits, too. The largest difference depends on one sharp head, so the
        # mean of squares is compared. Its root is about equal for all types in blocks, at most 1.12e-3.
        assert np.sqrt(((found - expected) ** 2).mean()) < 1.3e-3
        return
    # With integer keys, the query is rounded to integers; with integer values, weights are rounded.
    np.testing.assert_allclose(found, expected, atol=2e-4 if DType.I16 in types else 2e-6)


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize(("sharpness", "outlier"), [(1, 0), (4, 0), (1, 50)])
def test_integers_are_nearer_than_half_precision(
    tmp_path: Path, size: int, sharpness: float, outlier: float
) -> None:
    """It tests weights spread over the history or on few tokens, and keys with one very large element."""
    q, k, v = sharpness * normal(16, 8, size), normal(1000, 2, size), normal(1000, 2, size)
    k[:, :, 3] += outlier
    cells, spans = np.arange(1000, dtype=np.int32), causal(1000, 16)
    exact = defined(q, k, v, spans, None, 0.0)
    off = {}
    for dtype in (DType.F16, DType.I16):
        found = Attender(tmp_path, "cpu", q, k, v, cells, types=(dtype, dtype)).attend(np.arange(16), spans)
        off[dtype] = np.sqrt(((found - exact) ** 2).mean())
    assert off[DType.I16] < 0.75 * off[DType.F16]


@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=[pytest.mark.long] * (isa == "portable")) for isa in _native.isa_names()]
)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_the_bits_depend_on_nothing_but_what_a_token_sees(
    tmp_path: Path, isa: str, types: tuple[DType, DType]
) -> None:
    for flash in (True, False) if types in PLAIN_TYPES else (True,):
        _compare(tmp_path, types, isa, flash)


def _compare(directory: Path, types: tuple[DType, DType], isa: str, flash: bool) -> None:
    history, heads, kv_heads, size = 600, 4, 1, 64
    q, k, v = (normal(history, h, size) for h in (heads, kv_heads, kv_heads))
    sinks = normal(heads)
    random = np.random.default_rng(2)
    whole = None
    for threads, cells in (
        (1, np.arange(history)),
        (2, np.arange(history) + 5),
        (3, random.permutation(1024)[:history]),
        (2, np.arange(history) + 16 * (np.arange(history) // 100)),
    ):
        attender = Attender(
            directory,
            "cpu",
            q,
            k,
            v,
            cells.astype(np.int32),
            types=types,
            options=[BackendOptions(flash), CPUOptions(threads, isa)],
            sinks=sinks,
        )
        all_at_once = attender.attend(np.arange(history), causal(history, history))
        whole = all_at_once if whole is None else whole
        assert (all_at_once == whole).all()
        alone = [
            attender.attend([i], [(0, i + 1, 0)], attender.cells[: i + 1]) for i in range(450, history, 37)
        ]
        assert (np.concatenate(alone) == whole[450:history:37]).all()
        assert (attender.attend(range(300, 307), causal(307, 7)) == whole[300:307]).all()
        # Two sequences in a batch, one after the other in the list, and a window that starts later.
        listed = np.concatenate([attender.cells, attender.cells[:590]])
        both = attender.attend([599, 589], [(0, 600, 0), (600, 1190, 0)], listed)
        assert (both == whole[[599, 589]]).all()
        windows = attender.attend([599, 580], [(270, 600, 270), (299, 581, 299)])
        trimmed = attender.attend([599], [(0, 330, 270)], attender.cells[270:])
        assert (windows[:1] == trimmed).all()
        assert (windows[1:] == attender.attend([580], [(19, 301, 299)], attender.cells[280:])).all()


def test_instruction_sets_agree(tmp_path: Path) -> None:
    q, k, v = normal(40, 8, 64), normal(500, 2, 64), normal(500, 2, 64)
    cells: I32 = np.arange(500, dtype=np.int32)
    for types in TYPES:
        found = [
            Attender(
                tmp_path, "cpu", q, k, v, cells, types=types, options=[CPUOptions(threads=2, isa=isa)]
            ).attend(np.arange(40), causal(500, 40))
            for isa in _native.isa_names()
        ]
        assert all((one == found[0]).all() for one in found)
