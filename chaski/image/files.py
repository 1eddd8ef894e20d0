"""Decoding of image files within limits: PNG, JPEG, WebP, GIF and BMP. A file with several pictures yields
the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from chaski.errors import ImageError, optional_package

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

__all__ = ["MAX_BYTES", "MAX_PIXELS", "Pixels", "animation_frames", "image_format", "open_image"]

Pixels: TypeAlias = npt.NDArray[np.uint8]

MAX_BYTES = 32 << 20
# Phone photos are smaller. Decoding this many pixels briefly needs about a gigabyte.
MAX_PIXELS = 64_000_000

_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP"}
# Opened by class, since `PIL.Image.open` applies its own size limit before ours can be checked.
_READERS = {
    "PNG": ("PIL.PngImagePlugin", "PngImageFile"),
    "JPEG": ("PIL.JpegImagePlugin", "JpegImageFile"),
    "WebP": ("PIL.WebPImagePlugin", "WebPImageFile"),
    "GIF": ("PIL.GifImagePlugin", "GifImageFile"),
    "BMP": ("PIL.BmpImagePlugin", "BmpImageFile"),
}
_SHOWN = 0.1  # seconds; browsers show pictures of an animation without a duration that long
_ORIENTATION = 0x0112  # EXIF tag: the orientation of the camera


def open_image(data: bytes, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Return the picture in a file, upright, as (height, width, 3).

    Transparent parts become white, as in Hugging Face's processors. Channels of 16 bits are reduced to their
    upper 8 bits. Color profiles are not applied. Raises ImageError for a file that is not an image, is
    truncated or damaged, or exceeds a limit. The number of pixels is checked before decoding.
    """
    if len(data) > max_bytes:
        raise ImageError(f"the image has {len(data)} bytes; at most {max_bytes} are allowed")
    kind = image_format(data)
    with optional_package("pillow", "images", "reading images"):
        reader = _reader(kind)
    try:
        with reader(BytesIO(data)) as file:
            _check_size(file.size, max_pixels)
            file.load()
            return np.asarray(_rgb(_upright(file)))
    except ImageError:
        raise
    except Exception as error:  # hostile bytes can make the decoders raise almost any exception
        raise ImageError(f"the {kind} image cannot be read: {error}") from error


def animation_frames(data: bytes, most: int) -> tuple[list[float], Iterator[Pixels]]:
    """Return the seconds that each picture of a file is shown, and the pictures, decoded one by one.

    `most`: the largest number of pixels of all pictures. Raises ImageError as `open_image` does.
    """
    kind = image_format(data)
    with optional_package("pillow", "images", "reading images"):
        reader = _reader(kind)
    try:
        with reader(BytesIO(data)) as file:
            _check_size(file.size, MAX_PIXELS)
            count = int(getattr(file, "n_frames", 1))
            if count * file.width * file.height > most:
                raise ImageError(
                    f"the video has {count} frames of {file.width} x {file.height} pixels; at most {most} "
                    "pixels in all are allowed: shorten it or make it smaller"
                )
            durations = []
            for number in range(count):
                file.seek(number)
                if kind == "WebP":
                    file.load()
                durations.append(max(float(file.info.get("duration", 0)), 0.0) / 1000 or _SHOWN)
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"the {kind} image cannot be read: {error}") from error
    return durations, _pictures(reader, data, count, kind)


def _pictures(reader: Callable[[BytesIO], ImageFile], data: bytes, count: int, kind: str) -> Iterator[Pixels]:
    try:
        with reader(BytesIO(data)) as file:
            for number in range(count):
                file.seek(number)
                yield np.asarray(_rgb(file))
    except Exception as error:
        raise ImageError(f"the {kind} image cannot be read: {error}") from error


def image_format(data: bytes) -> str:
    """Return PNG, JPEG, WebP, GIF or BMP, judged by the first bytes of the file. Raises ImageError for
    anything else.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    for signature, kind in _SIGNATURES.items():
        if data.startswith(signature):
            return kind
    seen = f"the data begins with {data[:8].hex(' ')}" if data else "there is no data"
    raise ImageError(f"not an image: {seen}; PNG, JPEG, WebP, GIF and BMP are known")


def _reader(kind: str) -> Callable[[BytesIO], ImageFile]:
    module, name = _READERS[kind]
    reader: Callable[[BytesIO], ImageFile] = getattr(import_module(module), name)
    return reader


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise ImageError(f"the image is empty: {width} x {height} pixels")
    if width * height > max_pixels:
        raise ImageError(
            f"the image has {width} x {height} pixels; at most {max_pixels} are allowed: make it smaller"
        )


def _upright(image: Image) -> Image:
    """Return the image rotated and mirrored as its orientation tag requires."""
    from PIL.Image import Transpose

    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    try:
        turn = turns.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # an unreadable EXIF block does not affect the picture
        return image
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image) -> Image:
    from PIL.Image import alpha_composite, fromarray, new

    if image.mode.startswith("I;16"):
        return fromarray(_upper_bits(image)).convert("RGB")
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = new("RGBA", image.size, (255, 255, 255, 255))
        return alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _upper_bits(image: Image) -> Pixels:
    """Return a 16-bit grey picture reduced to its upper eight bits; its transparent value becomes white."""
    grey = np.asarray(image)
    hidden = image.info.get("transparency")
    return (np.where(grey == hidden, 0xFFFF, grey) >> 8).astype(np.uint8)
