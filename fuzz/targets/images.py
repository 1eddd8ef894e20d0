"""Files of images and videos."""

from __future__ import annotations

import numpy as np

from chaski.image import Sampling, is_video, open_image, read_video
from fuzz.mutations import mutate_bytes
from fuzz.target import Target

__all__ = ["TARGETS"]

_MOST_PIXELS = 1 << 20


def image(data: bytes) -> None:
    """A file is decoded to the same pixels twice, or refused."""
    pixels = open_image(data, max_pixels=_MOST_PIXELS)
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert 0 < pixels.shape[0] * pixels.shape[1] <= _MOST_PIXELS
    assert np.array_equal(pixels, open_image(data, max_pixels=_MOST_PIXELS))


def video(data: bytes) -> None:
    """Frames of a file, or of several images, are decoded and resized, or refused."""
    is_video(data)
    found = read_video(data, _SAMPLING, lambda count, height, width: (16, 16))
    assert all(frame.shape == (16, 16, 3) for frame in found.pixels)


_SAMPLING = Sampling(2.0, 2, 8)

TARGETS = (Target("image", image, mutate_bytes), Target("video", video, mutate_bytes))
