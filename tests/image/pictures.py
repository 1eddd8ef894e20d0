"""Generated pictures: every size has a different one, with edges, slopes and noise."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import numpy.typing as npt
from PIL import Image

# Height and width: usual, tall, wide, tiny, square, one pixel, a line, and larger than every tiny limit.
SIZES = [(37, 53), (96, 31), (20, 150), (3, 2), (64, 64), (1, 1), (1, 12), (131, 90)]


def picture(height: int, width: int) -> npt.NDArray[np.uint8]:
    """Return a picture (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    noise = (x * 7919 + y * 104729 + x * y * 31) % 97
    channels = [
        255 * y // height * 3 // 4 + noise // 2,
        (x * 5 + noise) % 256,
        np.where((x // 5 + y // 3) % 2, 230, 20) + noise // 4,
    ]
    return np.stack(channels, -1).astype(np.uint8)


def png(height: int, width: int) -> bytes:
    """Return the picture as a PNG file."""
    buffer = BytesIO()
    Image.fromarray(picture(height, width)).save(buffer, "PNG")
    return buffer.getvalue()


def moving(count: int, height: int, width: int) -> list[npt.NDArray[np.uint8]]:
    """Return frames of a picture that moves to the right."""
    still = picture(height, width)
    return [np.roll(still, 3 * index, axis=1) for index in range(count)]
