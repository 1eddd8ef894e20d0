"""Reading images from the bytes of a file, its path, or an `Image` for the encoder."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

from chaski.chat.layout import placeholder, without_placeholders
from chaski.errors import OptionError, UnsupportedError
from chaski.image import is_video
from chaski.model.multimodal import Image, SeesVideos
from chaski.regular_files import read_regular

__all__ = [
    "ImageFile",
    "ImageReader",
    "ImageSource",
    "RecentImages",
    "image_bytes",
    "image_list",
    "placed_content",
    "with_image_parts",
    "with_numbered_images",
    "with_placed_images",
]

_MAX_RECENT_BYTES = 64 << 20
# Replaces text of a message that looks like an image placeholder of the template.
_LITERAL = placeholder(-1)
_IMAGE_FIELDS = ("images", "image_places")

ImageFile: TypeAlias = bytes | str | os.PathLike[str]
"""The bytes of an image file (PNG, JPEG, ...), or the path of one."""

ImageSource: TypeAlias = ImageFile | Image
"""In this process an image can also be what the model's encoder takes."""


def image_bytes(image: ImageSource) -> bytes:
    """The bytes of the file. Raises OptionError if it cannot be read."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, Image):
        raise OptionError("a model in another process or thread takes images as files only")
    if not isinstance(image, str | os.PathLike):
        raise OptionError(f"an image is {image!r:.80}; it must be the bytes of an image file, or its path")
    try:
        return read_regular(Path(image))
    except OSError as error:
        raise OptionError(f"the image {os.fspath(image)!r} cannot be read: {error.strerror}") from None


def image_list(images: object) -> list[ImageSource]:
    """Return images as a list; a single one may come alone. Raises OptionError."""
    if images is None:
        return []
    if isinstance(images, bytes | str | os.PathLike | Image):
        return [images]
    if not isinstance(images, Iterable) or isinstance(images, Mapping):
        raise OptionError(f"the images are {images!r:.80}; they must be a list of bytes or paths")
    return list(images)


class ImageReader(Protocol):
    """The part of an encoder that makes its input of a file."""

    def read_image(self, data: bytes) -> Image: ...


class RecentImages:
    """The most recently requested images in the encoder's form: every turn of a chat sends all again.

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
        image = _read(data, vision)
        with self._lock:
            if key not in self._found:
                self._found[key] = image
                self._bytes += image.nbytes
            while self._bytes > self._max_bytes and len(self._found) > 1:
                self._bytes -= self._found.popitem(last=False)[1].nbytes
        return image


def _read(data: bytes, vision: ImageReader) -> Image:
    if not is_video(data):
        return vision.read_image(data)
    if not isinstance(vision, SeesVideos):
        raise UnsupportedError("this model reads images, not videos; send some frames as images")
    return vision.read_video(data)


def placed_content(message: Mapping[str, Any], num_images: int) -> Mapping[str, Any]:
    """Return the text of a message, and the places of its images, where its content is a list of parts.

    A part is `{"type": "text", "text": …}`, or `{"type": "image"}` for the next image. Raises OptionError.
    """
    content = message.get("content") or ""
    if isinstance(content, str):
        if not all(type(place) is int for place in message.get("image_places") or ()):
            raise OptionError("image_places of a message must be offsets in its text")
        return {}
    text, places = "", []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "image":
            places.append(len(text))
        elif kind == "text" and isinstance(part.get("text"), str):
            text += part["text"]
        else:
            raise OptionError(
                f'a part of its content is {part!r:.80}; it must be {{"type": "text", "text": "..."}} or '
                '{"type": "image"}, whose image is in the field images'
            )
    if len(places) > num_images:
        raise OptionError(
            f"its content has {len(places)} parts of type image, but {num_images} images belong to it"
        )
    return {"content": text, "image_places": places} if num_images else {"content": text}


def with_placed_images(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the messages with the placeholders of their `images` in their texts, and as their `images`.

    `image_places` of a message are the offsets in its text at which its images stand. An image without one
    stands in front of the text. Nothing else in the messages looks like a placeholder.
    """
    if not any(message.get("images") for message in messages):
        return list(messages)
    found: list[Mapping[str, Any]] = []
    count = 0
    for message in messages:
        rest = {name: value for name, value in message.items() if name not in _IMAGE_FIELDS}
        rest = without_placeholders(rest)
        if own := message.get("images") or ():
            tags = [placeholder(count + number) for number in range(len(own))]
            count += len(own)
            rest["content"] = _placed(rest.get("content") or "", tags, message.get("image_places") or ())
            rest["images"] = tags
        found.append(rest)
    return found


def with_image_parts(messages: Iterable[Mapping[str, Any]], image_text: str) -> list[Mapping[str, Any]]:
    """Return the messages of `with_placed_images` with contents of parts, an image being one.

    `image_text` is what a template writes for such a part. Where a message has that text itself, something
    else stands for it until `with_numbered_images`.
    """
    found: list[Mapping[str, Any]] = []
    for message in messages:
        parts: list[Mapping[str, Any]] = []
        text = (message.get("content") or "").replace(image_text, _LITERAL)
        for tag in message.get("images") or ():
            before, _, text = text.partition(tag)
            parts += [{"type": "text", "text": before}] if before else []
            parts.append({"type": "image"})
        parts += [{"type": "text", "text": text}] if text else []
        found.append({**message, "content": parts})
    return found


def with_numbered_images(text: str, image_text: str, count: int) -> str | None:
    """Return a rendered text with placeholders for its images; None if it does not show all `count`."""
    first, *others = text.split(image_text)
    if len(others) != count:
        return None
    numbered = first + "".join(placeholder(index) + other for index, other in enumerate(others))
    return numbered.replace(_LITERAL, image_text)


def _placed(text: str, tags: Sequence[str], places: Sequence[int]) -> str:
    """Return the text with tags at their places, and the others in front."""
    pieces, end = list(tags[len(places) :]), 0
    for tag, place in zip(tags, places, strict=False):
        pieces += [text[end:place], tag]
        end = max(end, place)
    return "".join([*pieces, text[end:]])
