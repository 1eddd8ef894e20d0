"""Images for llama.cpp: chaski decodes and checks them, and llama.cpp counts their tokens."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from chaski.chat.layout import Prompt
from chaski.errors import ContextLengthError, UnsupportedError
from chaski.image import open_image
from chaski.model.multimodal import Image

__all__ = ["ImagePrompt", "PictureReader", "data_url", "prompt_field"]

_FILE = "file"
_ONLY_TEXTS = (
    "the engine llama.cpp takes images only in texts, not among token ids; send the prompt as a text"
)


class PictureReader:
    """Converts image files to `Image`s: a PNG, which llama.cpp reads directly, and its number of tokens.

    llama.cpp's own decoders never receive untrusted data, and they support neither WebP nor the orientation
    tag.
    """

    def __init__(self, count_tokens: Callable[[bytes], int]) -> None:
        self._count_tokens = count_tokens

    def read_image(self, data: bytes) -> Image:
        """Return the image. Raises ImageError if the file cannot be read or is too large."""
        png = _as_png(data)
        count = self._count_tokens(png)
        return Image({_FILE: np.frombuffer(png, np.uint8)}, count, (count,))


class ImagePrompt(Prompt, frozen=True):
    """A prompt with images, and the pieces from which llama.cpp makes its tokens."""

    pieces: tuple[str | Image, ...] = ()

    def followed_by(self, token_ids: Sequence[int]) -> Prompt:
        """Raise UnsupportedError: pieces are not tokens."""
        raise UnsupportedError(_ONLY_TEXTS)

    def shortened(self, excess: int, keep: int) -> Prompt:
        """Raise ContextLengthError: a text with images cannot be truncated at a token."""
        length = len(self.tokens)
        raise ContextLengthError(
            f"the prompt has {length} tokens including its images, but the context holds "
            f"{length - excess}; the engine llama.cpp cannot truncate prompts with images: shorten it, "
            "or set OLLAMA_CONTEXT_LENGTH or num_ctx to more",
            length,
            length - excess,
        )


def prompt_field(prompt: Prompt, marker: str) -> Any:
    """Return a prompt as the field of a request; `marker` is the text in place of an image."""
    if isinstance(prompt, ImagePrompt):
        text = "".join(piece if isinstance(piece, str) else marker for piece in prompt.pieces)
        files = [piece for piece in prompt.pieces if isinstance(piece, Image)]
        return {"prompt_string": text, "multimodal_data": [_base64(_file(image)) for image in files]}
    if prompt.images:
        raise UnsupportedError(_ONLY_TEXTS)
    return prompt.tokens


def data_url(png: bytes) -> str:
    """Return an image as a data URL."""
    return f"data:image/png;base64,{_base64(png)}"


def _as_png(data: bytes) -> bytes:
    pixels = open_image(data)
    from PIL.Image import fromarray

    written = BytesIO()
    fromarray(pixels).save(written, "PNG", compress_level=1)
    return written.getvalue()


def _file(image: Image) -> bytes:
    return bytes(image.arrays[_FILE])


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
