from __future__ import annotations

import errno
import os
import struct
import zlib
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from chaski.errors import ImageError
from chaski.image import Sampling, as_video, files, image_format, open_image, read_video, videos
from tests.image.pictures import picture

LOSSLESS: dict[str, dict[str, Any]] = {"PNG": {}, "WebP": {"lossless": True}, "BMP": {}}
KINDS = {**LOSSLESS, "JPEG": {}, "GIF": {}}


def encoded(image: Image.Image | npt.NDArray[np.uint8], kind: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, depth: int, color: int, rows: bytes, *chunks: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + data + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", LOSSLESS)
def test_lossless_files_give_their_pixels(kind: str) -> None:
    pixels = picture(13, 31)
    data = encoded(pixels, kind, **LOSSLESS[kind])
    assert image_format(data) == kind
    np.testing.assert_array_equal(open_image(data), pixels)


def test_jpeg_is_near() -> None:
    slope = np.add.outer(np.arange(40), np.arange(64)).astype(np.uint8)
    pixels = np.stack([slope, 255 - slope, slope // 2], -1)
    difference = open_image(encoded(pixels, "JPEG", quality=95)).astype(int) - pixels
    assert np.abs(difference).max() < 12


@pytest.mark.parametrize("kind", ["GIF", "WebP", "PNG"])
def test_of_several_pictures_the_first(kind: str) -> None:
    colors = [Image.new("RGB", (9, 5), color) for color in ("#ff0000", "#00ff00", "#0000ff")]
    data = encoded(colors[0], kind, save_all=True, append_images=colors[1:], **KINDS[kind])
    np.testing.assert_array_equal(open_image(data), np.full((5, 9, 3), (255, 0, 0)))


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    image = Image.fromarray(picture(8, 11)).convert(mode)
    kind = "JPEG" if mode == "CMYK" else "PNG"
    data = encoded(image, kind, **({"quality": 100, "subsampling": 0} if mode == "CMYK" else {}))
    expected = np.asarray(image.convert("RGB")).astype(int)
    assert np.abs(open_image(data) - expected).max() <= (6 if mode == "CMYK" else 0)


@pytest.mark.parametrize("alpha", [0, 77, 255])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_shows_white(mode: str, alpha: int) -> None:
    color = (200, 40, 10, alpha)
    image = Image.new("RGBA", (3, 2), color).convert(mode)
    grey = np.asarray(image.convert("RGBA"))[0, 0, :3].astype(float)
    shown = open_image(encoded(image))
    np.testing.assert_allclose(shown[0, 0], (grey * alpha + 255.0 * (255 - alpha)) / 255, atol=1)


def test_a_transparent_color_shows_white() -> None:
    image = Image.fromarray(np.array([[0, 1], [2, 1]], np.uint8), "P")
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    for kind in ("PNG", "GIF"):
        shown = open_image(encoded(image, kind, transparency=1))
        assert shown.tolist() == [[[10, 20, 30], [255] * 3], [[70, 80, 90], [255] * 3]]


def test_of_16_bits_the_upper_ones_count() -> None:
    grey = np.array([[0x0012, 0x8034], [0xFFFF, 0x40FF]], ">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in grey)
    assert open_image(png(2, 2, 16, 0, rows)).tolist() == [[[0] * 3, [128] * 3], [[255] * 3, [64] * 3]]
    hidden = chunk(b"tRNS", struct.pack(">H", 0x8034))
    assert open_image(png(2, 2, 16, 0, rows, hidden))[0].tolist() == [[0] * 3, [255] * 3]
    colors = b"\0" + np.array([0x1111, 0x80FF, 0xFF00], ">u2").tobytes()
    assert open_image(png(1, 1, 16, 2, colors)).tolist() == [[[0x11, 0x80, 0xFF]]]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WebP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_upright(kind: str, orientation: int) -> None:
    """The stored rows are the sides of the picture from EXIF's table."""
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = 255  # one bright quarter, top left
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.swapaxes(0, 1),
        6: upright.swapaxes(0, 1)[::-1],
        7: upright.swapaxes(0, 1)[::-1, ::-1],
        8: upright.swapaxes(0, 1)[:, ::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    shown = open_image(encoded(np.ascontiguousarray(stored), kind, exif=exif, **KINDS[kind]))
    assert shown.shape == upright.shape
    assert np.abs(shown.astype(int) - upright).max() <= (0 if kind != "JPEG" else 20)


def test_notes_of_the_camera_that_cannot_be_read_do_no_harm() -> None:
    pixels = picture(4, 4)
    np.testing.assert_array_equal(open_image(encoded(pixels, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")), pixels)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_file_is_refused_or_whole(kind: str) -> None:
    """A file cut at any place never gives a picture with a missing part."""
    data = encoded(picture(24, 31), kind, **KINDS[kind])
    whole = open_image(data)
    refused = 0
    for length in range(0, len(data), 7):
        try:
            np.testing.assert_array_equal(open_image(data[:length]), whole)
        except ImageError:
            refused += 1
    assert refused > len(data) / 7 * 0.9


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_raise_nothing_else(kind: str) -> None:
    data = encoded(picture(12, 17), kind, **KINDS[kind])
    random = np.random.default_rng(3)
    for _ in range(150):
        damaged = bytearray(data)
        for place in random.integers(0, min(len(data), 200), 3):
            damaged[place] = random.integers(256)
        with suppress(ImageError):
            assert open_image(bytes(damaged)).ndim == 3


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "there is no data"),
        (b"%PDF-1.7 ...", "begins with 25 50 44 46"),
        (b"<svg xmlns=''></svg>", "PNG, JPEG, WebP, GIF and BMP are known"),
        (b"II*\0" + bytes(40), "not an image"),
        (b"BM", "the BMP image cannot be read"),
    ],
)
def test_foreign_data_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        open_image(data)


@pytest.mark.parametrize("edge", [8_001, 20_000, 65_535])
def test_bombs_are_refused_before_they_are_decoded(edge: int) -> None:
    """Their data is not a picture, so decoding it would give another error."""
    words = rf"{edge} x {edge} pixels; at most 64000000"
    bmp = b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, edge, edge, 1, 24, 0, 0, 0, 0, 0, 0)
    gif = b"GIF89a" + struct.pack("<HHBBB", edge, edge, 0, 0, 0)
    gif += b"," + struct.pack("<HHHHB", 0, 0, edge, edge, 0) + b"\x02\x01\x00\x00;"
    jpeg = bytearray(encoded(picture(8, 8), "JPEG"))
    frame = jpeg.index(b"\xff\xc0") + 5
    jpeg[frame : frame + 4] = struct.pack(">HH", edge, edge)
    for data in (png(edge, edge, 8, 2, b"\0"), bmp, gif, bytes(jpeg)):
        with pytest.raises(ImageError, match=words):
            open_image(data)


def test_limits_can_be_set() -> None:
    data = encoded(picture(10, 10))
    with pytest.raises(ImageError, match=rf"has {len(data)} bytes; at most 50 "):
        open_image(data, max_bytes=50)
    with pytest.raises(ImageError, match="10 x 10 pixels; at most 99 "):
        open_image(data, max_pixels=99)
    assert open_image(data, max_bytes=len(data), max_pixels=100).shape == (10, 10, 3)


def test_a_process_that_is_short_of_descriptors_does_not_blame_the_image(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), name)

    monkeypatch.setattr(files, "import_module", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        open_image(b"\x89PNG\r\n\x1a\n")


def test_the_images_of_a_video_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by fuzzing: files of a few kilobytes took seconds each to decode."""
    monkeypatch.setattr(videos, "_MAX_DECODED", 250)
    frames = [encoded(picture(10, 10), "PNG")] * 2
    assert len(read_video(as_video(frames), Sampling(), lambda count, height, width: (4, 4)).pixels) == 2
    with pytest.raises(ImageError, match="3 frames of 10 x 10 pixels"):
        read_video(as_video([*frames, frames[0]]), Sampling(), lambda count, height, width: (4, 4))
