"""Decoding of videos within limits: frames at equal distances, as the published processors sample them.

A video is a file (MP4, WebM, Matroska, QuickTime or AVI, decoded by PyAV), an animated GIF or WebP (decoded
by Pillow), or a list of image files. `as_video` makes bytes of the last two, so that all are sent alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from math import isfinite
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from chaski.errors import ImageError, optional_package
from chaski.image.files import MAX_BYTES, MAX_PIXELS, Pixels, animation_frames, image_format, open_image
from chaski.image.transforms import resize

__all__ = ["PACKED", "Frames", "Sampling", "as_video", "is_video", "read_video"]

PACKED = b"chaski video\x00"
"""The first bytes of what `as_video` returns. Clients of a server may not send it."""

# Decoding this many pixels takes a minute or two: five minutes of 1080p.
_MAX_DECODED = 20_000_000_000
_MAX_RATE = 60.0

Size = tuple[int, int]
SizeOf = Callable[[int, int, int], Size]
"""Returns the height and width that frames are resized to, from their number, height and width."""


class Sampling(Struct, frozen=True):
    """Frames a second that are read of a video, and the least and the most frames."""

    rate: float = 2.0
    least: int = 4
    most: int = 768

    def indices(self, total: int, rate: float) -> list[int]:
        """Return the numbers of the frames that are read of `total` frames, `rate` of them a second."""
        count = min(max(int(total / rate * self.rate), self.least), self.most, total)
        chosen: list[int] = np.linspace(0, total - 1, count).round().astype(int).tolist()
        return chosen


class Frames(Struct, frozen=True):
    """Frames of a video in their order, each with its time in seconds."""

    pixels: Sequence[Pixels]
    times: Sequence[float]


class _Packed(Struct, frozen=True):
    """A video with its rate: frames a second that are read of `file`, or at which `frames` were taken."""

    file: bytes = b""
    frames: tuple[bytes, ...] = ()
    rate: float | None = None


def is_video(data: bytes) -> bool:
    """Return whether data is a file of a video, or the result of `as_video`. An animated image is not one."""
    return (
        data.startswith((PACKED, b"\x1aE\xdf\xa3"))
        or data[4:8] == b"ftyp"
        or (data[:4] == b"RIFF" and data[8:12] == b"AVI ")
    )


def as_video(files: Sequence[bytes], rate: float | None = None) -> bytes:
    """Return a video of one file (a video or an animated image), or of image files, as bytes.

    `rate`: frames a second that are read of the file, or at which the images were taken; 2 by default.
    Raises ImageError for another rate than a positive one of at most 60, and for no file.
    """
    if rate is not None and not (isfinite(rate) and 0 < rate <= _MAX_RATE):
        raise ImageError(f"fps is {rate}; it must be above 0 and at most {_MAX_RATE:g}")
    if not files:
        raise ImageError("the video has no frames")
    video = _Packed(files[0], rate=rate) if len(files) == 1 else _Packed(frames=tuple(files), rate=rate)
    return PACKED + msgspec.msgpack.encode(video)


def read_video(data: bytes, sampling: Sampling, size_of: SizeOf) -> Frames:
    """Return the sampled frames of a video, resized.

    Raises ImageError for a file that is not a video, is damaged, has a single frame, or exceeds a limit. The
    limits are checked before frames are decoded.
    """
    if len(data) > MAX_BYTES:
        raise ImageError(f"the video has {len(data)} bytes; at most {MAX_BYTES} are allowed: shorten it")
    video = _Packed(data)
    if data.startswith(PACKED):
        try:
            video = msgspec.msgpack.decode(data[len(PACKED) :], type=_Packed)
        except msgspec.DecodeError as error:
            raise ImageError(f"the video cannot be read: {error}") from None
    if video.frames:
        return _listed(video.frames, video.rate or sampling.rate, sampling.most, size_of)
    if video.rate is not None:
        sampling = msgspec.structs.replace(sampling, rate=video.rate)
    if is_video(video.file):
        return _of_container(video.file, sampling, size_of)
    if (kind := image_format(video.file)) not in ("GIF", "WebP"):
        raise ImageError(f"a {kind} image is not a video; send it as an image, or send several frames")
    return _animated(video.file, sampling, size_of)


def _listed(files: Sequence[bytes], rate: float, most: int, size_of: SizeOf) -> Frames:
    if len(files) > most:
        raise ImageError(f"the video has {len(files)} frames; at most {most} are allowed: send fewer")
    first = open_image(files[0])
    height, width = first.shape[:2]
    _check(len(files), height, width)
    size = size_of(len(files), height, width)
    pixels = [resize(first, size, "bicubic")]
    for number, file in enumerate(files[1:], start=1):
        frame = open_image(file)
        if frame.shape != first.shape:
            raise ImageError(
                f"frame {number} of the video has {frame.shape[1]} x {frame.shape[0]} pixels, but frame 0 "
                f"has {width} x {height}; send frames of one size"
            )
        pixels.append(resize(frame, size, "bicubic"))
    return Frames(pixels, [number / rate for number in range(len(files))])


def _animated(data: bytes, sampling: Sampling, size_of: SizeOf) -> Frames:
    durations, frames = animation_frames(data, _MAX_DECODED)
    return _sampled(frames, len(durations), len(durations) / (sum(durations) or 1.0), sampling, size_of)


def _of_container(data: bytes, sampling: Sampling, size_of: SizeOf) -> Frames:
    with optional_package("av", "video", "reading videos"):
        import av
    try:
        with av.open(BytesIO(data)) as file:
            if not file.streams.video:
                raise ImageError("the file has no video; send a video or images")
            stream = file.streams.video[0]
            width, height = stream.codec_context.width, stream.codec_context.height
            total = stream.frames or _counted(data)
            _check(total, height, width)
            rate = float(stream.average_rate or stream.guessed_rate or 0) or 24.0
            return _sampled((_rgb(frame) for frame in file.decode(stream)), total, rate, sampling, size_of)
    except ImageError:
        raise
    except Exception as error:  # hostile bytes can make the decoders raise almost any exception
        raise ImageError(f"the video cannot be read: {error}") from error


def _counted(data: bytes) -> int:
    """Count the frames of a file that does not state their number, without decoding them."""
    import av

    with av.open(BytesIO(data)) as file:
        return sum(1 for packet in file.demux(file.streams.video[0]) if packet.size)


def _check(total: int, height: int, width: int) -> None:
    if total < 1 or width < 1 or height < 1:
        raise ImageError(f"the video is empty: {total} frames of {width} x {height} pixels")
    if width * height > MAX_PIXELS or total * width * height > _MAX_DECODED:
        raise ImageError(
            f"the video has {total} frames of {width} x {height} pixels; at most {MAX_PIXELS} pixels a frame "
            f"and {_MAX_DECODED} in all are allowed: shorten it or make it smaller"
        )


def _rgb(frame: Any) -> Pixels:
    """Return a decoded frame upright."""
    pixels: Pixels = frame.to_ndarray(format="rgb24")
    return np.ascontiguousarray(np.rot90(pixels, round(getattr(frame, "rotation", 0) / 90)))


def _sampled(
    decoded: Iterable[Pixels] | Iterator[Pixels], total: int, rate: float, sampling: Sampling, size_of: SizeOf
) -> Frames:
    """Decode up to the last chosen frame, and keep those that are chosen. A file may end too early."""
    chosen = sampling.indices(total, rate)
    wanted, pixels = set(chosen), dict[int, Pixels]()
    size: Size | None = None
    for index, frame in enumerate(decoded):
        if index in wanted:
            size = size or size_of(len(chosen), *frame.shape[:2])
            pixels[index] = resize(frame, size, "bicubic")
        if index == chosen[-1]:
            break
    found = [index for index in chosen if index in pixels]
    if not found:
        raise ImageError("the video has no frame that can be decoded")
    return Frames([pixels[index] for index in found], [index / rate for index in found])
