"""Images and videos in requests: decoding of base64 to the bytes of files, and a check of their format."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from chaski.errors import ImageError, OptionError
from chaski.image import MAX_BYTES, PACKED, as_video, image_format, is_video
from chaski.server.fields.reader import Fields

__all__ = ["Spoken", "check_images", "read_base64", "read_data_url", "read_video_part"]

MAX_IMAGES = 64
"""Largest number of images in all messages of a request together."""

# Whitespace is removed, and the letters of URL-safe base64 become those of plain base64.
_SPELLING = {**dict.fromkeys(map(ord, " \t\r\n")), ord("-"): "+", ord("_"): "/"}
_MIN_FRAMES = 2
_LINK = "image URLs are not currently supported, please use base64 encoded data instead"


class Spoken(Struct):
    """Alternating texts and images, as content of one message in Ollama's form.

    places  offsets of the images in the text
    length  number of characters of the text so far
    """

    images: list[bytes] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    length: int = 0
    _pieces: list[str] = field(default_factory=list)

    def add_text(self, text: str) -> None:
        """Add text, on a new line if it directly follows other text."""
        is_behind_text = self.length and self.places[-1:] != [self.length]
        self._pieces.append(f"\n{text}" if is_behind_text else text)
        self.length += len(self._pieces[-1])

    def add_image(self, data: bytes) -> None:
        """Add an image at the end of the text."""
        self.places.append(self.length)
        self.images.append(data)

    def add_prefix(self, text: str) -> None:
        """Insert text before everything else."""
        self._pieces.insert(0, text)
        self.length += len(text)
        self.places = [place + len(text) for place in self.places]

    def begins_with(self, words: tuple[str, ...]) -> bool:
        """Return whether the text begins with one of these words, ignoring case."""
        return self.text[: max(map(len, words))].lower().startswith(words)

    @property
    def text(self) -> str:
        """The whole text. Its pieces are joined here, so that adding them takes linear time."""
        return "".join(self._pieces)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a message."""
        images = {"images": self.images, "image_places": self.places} if self.images else {}
        return {"content": self.text, **images}


def read_base64(value: object, where: str) -> bytes:
    """Return the bytes of an image or a video.

    Raises OptionError if it is not base64, ImageError if it is neither.
    """
    if not isinstance(value, str):
        raise OptionError(f"{where} must be a string with a file in base64")
    if len(value) > MAX_BYTES * 4 // 3 + 4:
        raise ImageError(f"{where} is too large; at most {MAX_BYTES} bytes are allowed")
    try:
        data = _decoded(value)
    except (binascii.Error, ValueError) as error:
        raise OptionError(f"{where} is not base64: {error}") from None
    if is_video(data) and not data.startswith(PACKED):
        return data
    try:
        image_format(data)
    except ImageError as error:
        raise ImageError(f"{where}: {error}") from None
    return data


def _decoded(text: str) -> bytes:
    """Decode base64 that may contain whitespace, lack its padding, or be URL-safe. Raises ValueError."""
    if not text.isascii():
        raise ValueError("it contains characters outside ASCII")
    letters = text.translate(_SPELLING).rstrip("=")
    return b64decode(letters + "=" * (-len(letters) % 4), validate=True)


def read_data_url(url: str, where: str) -> bytes:
    """Return the file in `data:image/png;base64,…` or `data:;base64,…`. Raises OptionError for links."""
    if url.partition(":")[0].lower() in ("http", "https"):
        raise OptionError(_LINK)
    head, comma, text = url.partition(",")
    scheme, _, kind = head.removesuffix(";base64").partition(":")
    if scheme != "data" or not comma or not head.endswith(";base64"):
        raise OptionError(f"{where} must be a URL like data:image/png;base64,…")
    if kind and not kind.startswith("image/"):
        raise OptionError(f"{where} is {kind:.60}, not an image")
    return read_base64(text, where)


def read_video_part(part: Fields, field: str) -> bytes:
    """Return the video of a part: a URL in `field`, given directly or in an object, or a list of frames.

    `fps`, next to the URL or in its object, is the number of frames a second that are read, or at which the
    frames of a list were taken. Raises OptionError, or ImageError for what is not a video.
    """
    holder, where, name = part, field, field
    if isinstance(part.data.get(field), Mapping):
        holder, where, name = Fields(part.mapping(field), field), f"{field}.url", "url"
    rate = holder.number("fps", part.number("fps", None))
    if isinstance(holder.data.get(name), list):
        frames = [read_data_url(url, where) for url in holder.texts(name)]
        if len(frames) < _MIN_FRAMES:
            raise OptionError(f"{where} has {len(frames)} frames; a video has at least {_MIN_FRAMES}")
        return as_video(frames, rate)
    return as_video(_files(holder.text(name), where), rate)


def _files(url: str, where: str) -> list[bytes]:
    """Return the file in `data:video/mp4;base64,…`, or the frames in `data:video/jpeg;base64,…,…`."""
    if url.partition(":")[0].lower() in ("http", "https"):
        raise OptionError(_LINK.replace("image", "video"))
    head, comma, text = url.partition(",")
    scheme, _, kind = head.removesuffix(";base64").partition(":")
    if scheme != "data" or not comma or not head.endswith(";base64"):
        raise OptionError(f"{where} must be a URL like data:video/mp4;base64,…")
    if kind and not kind.startswith(("video/", "image/")):
        raise OptionError(f"{where} is {kind:.60}, not a video")
    return [read_base64(piece, where) for piece in text.split(",")]


def check_images(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise OptionError if a request contains too many images."""
    count = sum(len(message.get("images", ())) for message in messages)
    if count > MAX_IMAGES:
        raise OptionError(f"the request contains {count} images; at most {MAX_IMAGES} are allowed")
