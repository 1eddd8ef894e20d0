"""Reading images from the bytes of a file, its path, or an `Image` for the encoder."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

from chaski.chat.layout import placeholder
from chaski.errors import OptionError
from chaski.model.multimodal import Image

__all__ = [
    "ImageFile",
    "ImageReader",
    "ImageSource",
    "RecentImages",
    "image_bytes",
    "with_image_parts",
    "with_numbered_images",
    "with_placed_images",
]

_MAX_RECENT_BYTES = 64 << 20
# A private character: it stands for a text of the user that looks like an image of the template.
_LITERAL = "\ue0f8"

ImageFile: TypeAlias = bytes | str | os.PathLike[str]
"""The bytes of an image file (PNG, JPEG, ...), or the path of one."""

ImageSource: TypeAlias = ImageFile | Image
"""In this process an image can also be what the model's encoder takes."""


def image_bytes(image: ImageSource) -> bytes:
    """The bytes of the file. Raises OptionError where there is none."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image):
        raise OptionError("a model in another process or thread takes images as files only")
    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise OptionError(f"the image {os.fspath(image)!r} cannot be read: {error.strerror}") from None


class ImageReader(Protocol):
    """The part of an encoder that makes its input of a file."""

    def read_image(self, data: bytes) -> Image: ...


class RecentImages:
    """Images as the encoder takes them, those that were asked for last: every turn of a chat sends all anew.

    Safe to use from several threads.
    """

    def __init__(self, max_bytes: int = _MAX_RECENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._found: OrderedDict[bytes, Image] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def read(self, source: ImageSource, vision: ImageReader) -> Image:
        """An image. Raises what `vision` does."""
        if isinstance(source, Image):
            return source
        data = image_bytes(source)
        key = blake2b(data).digest()
        with self._lock:
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        image = vision.read_image(data)
        with self._lock:
            if key not in self._found:
                self._found[key] = image
                self._bytes += image.nbytes
            while self._bytes > self._max_bytes and len(self._found) > 1:
                self._bytes -= self._found.popitem(last=False)[1].nbytes
        return image


def with_placed_images(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages without their `images`, which numbered placeholders in their texts stand for.

    Each comes where the text says `[img]`, and where it does not, in front of the text.
    """
    found: list[Mapping[str, Any]] = []
    index = 0
    for message in messages:
        text, front = message.get("content") or "", ""
        own = message.get("images") or ()
        for _ in own:
            if "[img]" in text:
                text = text.replace("[img]", placeholder(index), 1)
            else:
                front += placeholder(index)
            index += 1
        rest = {key: value for key, value in message.items() if key != "images"}
        found.append({**rest, "content": front + text} if own else rest)
    return found


def with_image_parts(messages: Iterable[Mapping[str, Any]], image_text: str) -> list[Mapping[str, Any]]:
    """Return the messages with contents of parts, an image being one, where `with_placed_images` places it.

    `image_text` is what a template writes for such a part. Where a message has that text itself, something
    else stands for it until `with_numbered_images`.
    """
    found: list[Mapping[str, Any]] = []
    index = 0
    for message in with_placed_images(messages):
        parts: list[Mapping[str, Any]] = []
        text = message.get("content") or ""
        while placeholder(index) in text:
            before, _, text = text.partition(placeholder(index))
            parts += [{"type": "text", "text": before}] if before else []
            parts.append({"type": "image"})
            index += 1
        parts += [{"type": "text", "text": text}] if text else []
        literal = [
            {**part, "text": part["text"].replace(image_text, _LITERAL)} if "text" in part else part
            for part in parts
        ]
        found.append({**message, "content": literal})
    return found


def with_numbered_images(text: str, image_text: str, count: int) -> str | None:
    """Return a rendered text with placeholders for its images; None if it does not show all `count`."""
    first, *others = text.split(image_text)
    if len(others) != count:
        return None
    numbered = first + "".join(placeholder(index) + other for index, other in enumerate(others))
    return numbered.replace(_LITERAL, image_text)
