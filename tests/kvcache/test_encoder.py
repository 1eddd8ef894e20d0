"""Rules of the encoder cache."""

from __future__ import annotations

import numpy as np
import pytest

from chaski.errors import NotSupportedError, UnsupportedError
from chaski.kvcache import EncoderCache, KVShape, KVTypes
from chaski.ml.graph import DType
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
    assert inputs["history"].tolist() == list(range(len(inputs["history"])))
    assert all(first == 0 for first in inputs["spans"][:, 2])
    return len(inputs["rows"]), (inputs["spans"][:, 1] - inputs["spans"][:, 0]).tolist()


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
