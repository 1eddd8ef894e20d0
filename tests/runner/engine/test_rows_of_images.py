"""The image rows that a sequence adds to a batch, for any part of the sequence."""

from __future__ import annotations

import numpy as np

from chaski.chat.image_rows import ImageRun
from chaski.kvcache.batch import AttendedImage
from chaski.model.multimodal import Image
from chaski.runner.engine.images import ImagePart, image_part

NOTHING = range(0)
SLOT = 3


def image(number: int, num_rows: int, token: int | None = None) -> Image:
    return Image({"pixels": np.full(2, number, np.float32)}, num_rows, (num_rows,), token)


def test_rows_replace_the_embeddings_at_their_positions() -> None:
    first, second = ImageRun(range(2, 5), image(0, 3)), ImageRun(range(6, 10), image(1, 4))
    found = image_part((first, second), range(4, 8), NOTHING, SLOT)
    cut = ImageRun(range(4, 5), first.image, 2), ImageRun(range(6, 8), second.image, 0)
    assert found == ImagePart(list(cut), [4, 6, 7], [])


def test_an_attended_image_comes_with_the_batch_of_its_token() -> None:
    first, second = (ImageRun(range(at, at + 1), image(at, 5, token=9)) for at in (1, 6))
    found = image_part((first, second), range(6, 8), NOTHING, SLOT)
    assert found == ImagePart([second], [], [AttendedImage(SLOT, 6, 5, first=1)])
    assert image_part((first, second), range(2, 6), NOTHING, SLOT) == ImagePart([], [], [])


def test_an_attended_image_is_encoded_again_where_only_its_token_was_restored() -> None:
    run = ImageRun(range(1, 2), image(0, 5, token=9))
    assert image_part((run,), range(4, 6), range(4), SLOT).attended == [AttendedImage(SLOT, 1, 5, first=1)]
    assert image_part((run,), range(5, 6), range(4), SLOT).attended == []
