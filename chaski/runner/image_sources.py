"""Where images come from: bytes of a file, its path, or what an encoder takes already."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from chaski.errors import OptionError
from chaski.model.multimodal import Image, MultimodalProcessor
from chaski.runner.layout import placeholder

__all__ = ["ImageFile", "ImageSource", "image_bytes", "read_image", "take_images"]

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


def read_image(image: ImageSource, vision: MultimodalProcessor) -> Image:
    """What the encoder takes."""
    return image if isinstance(image, Image) else vision.read_image(image_bytes(image))


def take_images(
    messages: Iterable[Mapping[str, Any]],
) -> tuple[list[Mapping[str, Any]], list[ImageSource]]:
    """The messages of a conversation without their `images`, which placeholders in their texts stand for.

    Each comes where the text says `[img]`, and where it does not, in front of the text.
    """
    found: list[Mapping[str, Any]] = []
    images: list[ImageSource] = []
    for message in messages:
        own = list(message.get("images") or ())
        text = message.get("content") or ""
        if own and not isinstance(text, str):
            raise OptionError("a message with images must have a text as its content")
        front = ""
        for index in range(len(images), len(images) + len(own)):
            if "[img]" in text:
                text = text.replace("[img]", placeholder(index), 1)
            else:
                front += placeholder(index)
        rest = {key: value for key, value in message.items() if key != "images"}
        found.append({**rest, "content": front + text} if own else rest)
        images += own
    return found, images
