"""Rules of the encoder cache."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace

from chaski.kvcache import EncoderCache, KVShape, KVTypes
from chaski.kvcache.batch import AttendedImage, Batch
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Rope
from chaski.ml.reference import ReferenceBackend
from tests.backends import BACKENDS

F32 = KVTypes(DType.F32, DType.F32)


def make(sequences: int = 1) -> EncoderCache:
    return EncoderCache(ReferenceBackend(), [KVShape(1, 2, 2)], 6, 3, sequences, F32)


def image(position: int, num_rows: int, sequence: int = 0, first: int | None = None) -> AttendedImage:
    return AttendedImage(sequence, position, num_rows, position if first is None else first)


def batch(begin: int, end: int, *images: AttendedImage, sequence: int = 0) -> Batch:
    positions = np.arange(begin, end, dtype=np.int32)
    rows = np.zeros((sum(each.num_rows for each in images), 3), np.float32) if images else None
    sequences = np.full_like(positions, sequence)
    return Batch(positions, positions, sequences, positions[:0], attended=images, encoded=rows)


def visible(
    cache: EncoderCache, begin: int, end: int, *images: AttendedImage, sequence: int = 0
) -> tuple[int, list[int]]:
    """Return the number of rows that a batch stores, and that each of its tokens sees."""
    inputs = cache.start_forward(batch(begin, end, *images, sequence=sequence))
    assert len(inputs["rows"]) == len(inputs["encoded"])
    seen = [0] * (end - begin)
    for token, (first, last, position) in zip(inputs["attending"], inputs["spans"], strict=True):
        assert (first, last, position) == (0, len(inputs["history"]), 0)
        seen[token] = int(last)
    if len(inputs["rows"]):
        np.testing.assert_array_equal(inputs["history"], inputs["rows"])
    return len(inputs["rows"]), seen


def place(cache: EncoderCache, sequence: int) -> int:
    """Return the first cell that the next token of a sequence sees."""
    length = cache.length(sequence)
    after = batch(length, length + 1, sequence=sequence)
    history = cache.start_forward(after)["history"]
    cache.undo_forward(after)
    return int(history[0])


def test_tokens_see_the_last_image_before_them() -> None:
    cache = make()
    assert visible(cache, 0, 2) == (0, [0, 0])
    assert visible(cache, 2, 5, image(3, 4)) == (4, [0, 4, 4])
    assert visible(cache, 5, 6) == (0, [4])
    assert visible(cache, 6, 8, image(6, 2, first=3)) == (2, [2, 2])
    assert visible(cache, 8, 9) == (0, [2])
    assert cache.length(0) == 9


def test_an_image_that_others_before_it_in_the_batch_would_lose_is_a_mistake() -> None:
    cache = make()
    visible(cache, 0, 2, image(0, 4))
    with pytest.raises(AssertionError, match="middle of a batch"):
        cache.start_forward(batch(2, 4, image(3, 4)))


def test_where_the_image_is_gone_nothing_can_be_resumed() -> None:
    cache = make()
    visible(cache, 0, 4, image(2, 4))
    visible(cache, 4, 9, image(4, 2, first=2))
    visible(cache, 9, 12, image(9, 1, first=2))
    resumable = [cache.resumable(0, position) for position in range(13)]
    assert resumable == [0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 10, 11, 12]
    assert [cache.can_resume(0, position) for position in (2, 3, 9, 10)] == [True, False, False, True]
    cache.remove(0, 0, 1)
    assert [cache.resumable(0, position) for position in (1, 2, 8, 9)] == [1, 1, 1, 9]
    cache.remove(0, 8)
    assert cache.length(0) == 1
    assert visible(cache, 1, 3) == (0, [0, 0])
    assert visible(cache, 3, 4, image(3, 5)) == (5, [5])
    assert [cache.resumable(0, position) for position in range(5)] == [0, 1, 2, 3, 4]


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
    visible(cache, 0, 8, image(3, 5))
    cache.remove(0, begin, end)
    length = cache.length(0)
    assert length == 8 - (8 if end is None else end) + begin
    assert visible(cache, length, length + 1) == (0, [5 if is_kept else 0])


def test_an_image_moves_with_its_token() -> None:
    cache = make()
    visible(cache, 0, 8, image(3, 5))
    cache.remove(0, 0, 2)  # it is now at 1
    cache.remove(0, 2, 4)
    assert visible(cache, 4, 5) == (0, [5])
    cache.remove(0, 1, 2)
    assert visible(cache, 4, 5) == (0, [0])


def test_a_batch_that_is_taken_back_leaves_the_image_before_it() -> None:
    cache = make()
    visible(cache, 0, 2, image(1, 3))
    cache.start_forward(batch(2, 4, image(2, 6)))
    cache.undo_forward(batch(2, 4, image(2, 6)))
    assert visible(cache, 2, 3) == (0, [3])


def test_each_sequence_has_an_image_of_its_own() -> None:
    cache = make(3)
    visible(cache, 0, 3, image(1, 4, sequence=0), sequence=0)
    visible(cache, 0, 2, image(0, 6, sequence=2), sequence=2)
    assert visible(cache, 0, 2, sequence=1) == (0, [0, 0])
    assert visible(cache, 3, 4, sequence=0) == (0, [4])
    assert visible(cache, 2, 3, sequence=2) == (0, [6])
    assert place(cache, 0) != place(cache, 2)
    assert [cache.length(sequence) for sequence in range(3)] == [4, 2, 3]
    cache.remove(0, 0)
    assert visible(cache, 3, 4, sequence=2) == (0, [6])


def test_images_of_several_sequences_in_one_batch() -> None:
    cache = make(3)
    visible(cache, 0, 2, image(0, 2, sequence=1), sequence=1)
    sequences = np.array([0, 0, 0, 1, 2, 2], np.int32)
    positions = np.array([0, 1, 2, 2, 0, 1], np.int32)
    rows = np.arange(7 * 3, dtype=np.float32).reshape(7, 3)
    images = (image(1, 4, sequence=0), image(0, 3, sequence=2))
    inputs = cache.start_forward(
        Batch(positions, positions, sequences, positions[:0], attended=images, encoded=rows)
    )
    assert inputs["encoded"] is rows  # which may be written later
    cells = inputs["history"]
    np.testing.assert_array_equal(inputs["rows"], np.concatenate([cells[:4], cells[6:]]))
    assert len(set(cells)) == 9
    assert inputs["attending"].tolist() == [1, 2, 3, 4, 5]
    assert inputs["spans"].tolist() == [[0, 4, 0], [0, 4, 0], [4, 6, 0], [6, 9, 0], [6, 9, 0]]


def test_sequences_that_begin_alike_share_an_image_until_one_gets_another() -> None:
    cache = make(2)
    visible(cache, 0, 6, image(2, 4))
    cache.copy_prefix(0, 1, 5)
    assert cache.length(1) == 5
    assert place(cache, 1) == place(cache, 0)
    assert visible(cache, 5, 7, image(5, 6, sequence=1, first=2), sequence=1) == (6, [6, 6])
    assert place(cache, 1) != place(cache, 0)
    assert visible(cache, 6, 7) == (0, [4])
    kept = place(cache, 1)
    visible(cache, 7, 8, image(7, 1, sequence=1, first=2), sequence=1)
    assert place(cache, 1) == kept


def test_a_prefix_without_what_cannot_be_resumed() -> None:
    cache = make(2)
    visible(cache, 0, 4, image(1, 4))
    visible(cache, 4, 8, image(4, 2, first=1))
    visible(cache, 0, 3, image(0, 2, sequence=1), sequence=1)
    cache.copy_prefix(0, 1, 3)
    assert cache.length(1) == 1
    assert visible(cache, 1, 2, sequence=1) == (0, [0])
    cache.copy_prefix(0, 1, 6)
    assert visible(cache, 6, 7, sequence=1) == (0, [2])


def test_tokens_that_saw_a_lost_image_stay_lost_when_the_one_behind_them_is_forgotten() -> None:
    cache = make()
    visible(cache, 0, 3, image(1, 4))
    visible(cache, 3, 6)
    visible(cache, 6, 9, image(6, 2, first=1))
    cache.remove(0, 4, 7)
    assert visible(cache, 6, 7) == (0, [0])
    assert [cache.resumable(0, position) for position in range(8)] == [0, 1, 1, 1, 1, 5, 6, 7]


def test_a_prefix_that_comes_back_is_followed_when_its_last_image_has_come() -> None:
    cache = make(2)
    assert cache.adopt(0, 9, first_image=2) is None
    assert [cache.resumable(0, position) for position in (1, 2, 3, 9)] == [1, 2, 2, 2]
    cache.copy_prefix(0, 1, 9)
    assert cache.length(1) == 2
    assert visible(cache, 9, 11, image(6, 4, first=2)) == (4, [4, 4])
    assert [cache.resumable(0, position) for position in (2, 6, 7, 9, 11)] == [2, 2, 7, 9, 11]
    cache.copy_prefix(0, 1, 9)
    assert visible(cache, 9, 10, sequence=1) == (0, [4])


def test_a_prefix_without_another_image_goes_on_with_the_one_that_is_there() -> None:
    cache = make()
    visible(cache, 0, 3, image(1, 5))
    cache.adopt(0, 7)
    assert visible(cache, 7, 8) == (0, [5])
    cache.adopt(0, 12, first_image=1)
    assert [cache.resumable(0, position) for position in (1, 2, 12)] == [1, 1, 1]
    assert visible(cache, 12, 13, image(10, 2, first=1)) == (2, [2])
    assert [cache.resumable(0, position) for position in (1, 10, 11, 12)] == [1, 1, 11, 12]


def test_any_position_can_be_resumed() -> None:
    cache = make()
    visible(cache, 0, 4)
    assert [cache.can_resume(0, position) for position in (0, 3, 4, 5)] == [True, True, True, False]
    assert [cache.resumable(0, position) for position in (0, 3, 9)] == [0, 3, 4]
    cache.check_remove(0, 1, 2)
    cache.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention_to_what_came_with_an_earlier_batch(backend: str) -> None:
    opened = open_backend(backend, CPUOptions(threads=1))
    cache = EncoderCache(opened, [KVShape(2, 32, 32)], 6, 64, 1, F32)
    graph = Graph()
    tokens = graph.input("tokens", (Dim("tokens", 8),), DType.I32)
    (face,) = cache.record(graph, Dim("tokens", 8))
    # Any numbers suffice as queries, such as angles of positions.
    q = ops.rope_table(tokens, Rope(np.linspace(1, 2, 32, dtype=np.float32))).reshape(64)
    kv = face.encoded.reshape(2, 32)
    y = ops.attention(q.rows(face.attending).reshape(2, 32), *face.update(kv, kv), scale=0.2)
    graph.output("y", ops.scatter(q, y.reshape(64), face.attending))
    plan = opened.compile(graph)
    rows = np.random.default_rng(1).standard_normal((5, 2, 32)).astype(np.float32)

    def run(batch: Batch) -> npt.NDArray[np.float32]:
        inputs = {"tokens": batch.tokens, **cache.start_forward(batch)}
        return plan.launch(inputs).rows("y").copy()

    def expected(position: int, num_rows: int) -> npt.NDArray[np.float32]:
        angles = np.float32(position) * np.linspace(1, 2, 32, dtype=np.float32)
        q, kv = np.stack([np.cos(angles), np.sin(angles)]), rows[:num_rows]
        if not num_rows:
            return q.ravel()
        weights = np.exp(0.2 * np.einsum("hd,nhd->hn", q, kv))
        return np.einsum("hn,nhd->hd", weights / weights.sum(axis=1, keepdims=True), kv).ravel()

    def check(found: npt.NDArray[np.float32], first: int, num_rows: list[int]) -> None:
        wanted = [expected(first + index, count) for index, count in enumerate(num_rows)]
        np.testing.assert_allclose(found, wanted, atol=2e-6)

    check(run(batch(0, 3)), 0, [0, 0, 0])
    check(run(replace(batch(3, 6, image(4, 5)), encoded=rows.reshape(5, 64))), 3, [0, 5, 5])
    check(run(batch(6, 7)), 6, [5])
    check(run(replace(batch(7, 9, image(7, 2)), encoded=rows[:2].reshape(2, 64))), 7, [2, 2])
    cache.remove(0, 4)
    check(run(batch(4, 6)), 4, [0, 0])
