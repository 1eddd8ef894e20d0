"""Rules of the encoder cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from chaski.errors import NotSupportedError, UnsupportedError
from chaski.kvcache import EncoderCache, KVShape, KVTypes
from chaski.ml import BackendOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Rope
from chaski.ml.reference import ReferenceBackend
from chaski.model.input import Batch, Encoded

F32 = KVTypes(DType.F32, DType.F32)


def make(sequences: int = 1) -> EncoderCache:
    return EncoderCache(ReferenceBackend(), [KVShape(1, 2, 2)], 6, sequences, F32)


def batch(begin: int, end: int, encoded: Encoded | None = None) -> Batch:
    positions = np.arange(begin, end, dtype=np.int32)
    return Batch(positions, positions, np.zeros_like(positions), positions[:0], encoded=encoded)


def visible(
    cache: EncoderCache, begin: int, end: int, encoded: Encoded | None = None
) -> tuple[int, list[int]]:
    """How many rows a batch stores, and how many each of its tokens sees."""
    inputs = cache.start_forward(batch(begin, end, encoded))
    history = inputs["history"].tolist()
    assert history in ([0], list(range(1, 1 + len(history))))
    assert inputs["rows"].tolist() in ([], history)
    assert all(span == [0, len(history), 0] for span in inputs["spans"].tolist())
    return len(inputs["rows"]), [0 if history == [0] else len(history)] * len(inputs["spans"])


def test_all_tokens_see_the_last_image() -> None:
    cache = make()
    assert visible(cache, 0, 2) == (0, [0, 0])
    assert not cache.is_filled
    assert visible(cache, 2, 5, Encoded(3, 4)) == (4, [4, 4, 4])
    assert visible(cache, 5, 6) == (0, [4])
    assert cache.is_filled
    assert visible(cache, 6, 7, Encoded(6, 2)) == (2, [2])
    assert visible(cache, 7, 8) == (0, [2])
    assert cache.length(0) == 8


@pytest.mark.parametrize(
    ("begin", "end", "is_kept"),
    [
        pytest.param(4, None, True, id="tail behind it"),
        pytest.param(3, None, False, id="tail that begins with it"),
        pytest.param(0, 3, True, id="beginning before it"),
        pytest.param(0, 4, False, id="beginning with it"),
        pytest.param(3, 4, False, id="the token itself"),
        pytest.param(4, 6, True, id="middle behind it"),
        pytest.param(3, 3, True, id="nothing"),
    ],
)
def test_an_image_goes_with_its_token(begin: int, end: int | None, is_kept: bool) -> None:
    cache = make()
    visible(cache, 0, 8, Encoded(3, 5))
    cache.remove(0, begin, end)
    length = cache.length(0)
    assert length == 8 - (8 if end is None else end) + begin
    assert visible(cache, length, length + 1) == (0, [5 if is_kept else 0])


def test_an_image_moves_with_its_token() -> None:
    cache = make()
    visible(cache, 0, 8, Encoded(3, 5))
    cache.remove(0, 0, 2)  # it is at 1 now
    cache.remove(0, 2, 4)
    assert cache.is_filled
    cache.remove(0, 1, 2)
    assert not cache.is_filled


def test_a_batch_that_is_taken_back_leaves_the_image_before_it() -> None:
    cache = make()
    visible(cache, 0, 2, Encoded(1, 3))
    cache.start_forward(batch(2, 4, Encoded(3, 6)))
    cache.undo_forward(batch(2, 4, Encoded(3, 6)))
    assert visible(cache, 2, 3) == (0, [3])


def test_one_sequence_only() -> None:
    with pytest.raises(UnsupportedError, match="parallel = 2"):
        make(2)
    with pytest.raises(NotSupportedError, match="one image only"):
        make().copy_prefix(0, 0, 1)


def test_any_position_can_be_resumed() -> None:
    cache = make()
    visible(cache, 0, 4)
    assert [cache.can_resume(0, position) for position in (0, 3, 4, 5)] == [True, True, True, False]
    assert [cache.resumable(0, position) for position in (0, 3, 9)] == [0, 3, 4]
    cache.check_remove(0, 1, 2)
    cache.close()


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_without_an_image_attention_gives_zeros(backend: str) -> None:
    opened = open_backend(backend, BackendOptions(threads=1))
    dtype = opened.default_kv_dtype
    cache = EncoderCache(opened, [KVShape(2, 32, 32)], 6, 1, KVTypes(dtype, dtype))
    graph = Graph()
    tokens = graph.input("tokens", (Dim("tokens", 8),), DType.I32)
    (face,) = cache.record(graph, Dim("tokens", 8))
    # Any numbers will do for queries, keys and values: angles of positions.
    q, kv = (
        ops.rope_table(ids, Rope(np.linspace(1, 2, 32, dtype=np.float32))) for ids in (tokens, face.rows)
    )
    y = ops.attention(q.reshape(2, 32), *face.update(kv.reshape(2, 32), kv.reshape(2, 32)), scale=0.2)
    graph.output("y", y.reshape(64))
    plan = opened.compile(graph)

    def run(batch: Batch) -> npt.NDArray[np.float32]:
        inputs = {"tokens": batch.tokens, **cache.start_forward(batch)}
        for name, value in inputs.items():
            plan.inputs[name][: len(value)] = value
        plan.run({name: len(inputs[name]) for name in ("tokens", "rows", "history")})
        return plan.output("y").copy()

    assert not run(batch(0, 3)).any()
    with_image = run(batch(3, 5, Encoded(4, 5)))
    assert with_image.all()
    later = run(batch(5, 6))
    assert later.all()
    cache.remove(0, 4)
    assert not run(batch(4, 6)).any()
