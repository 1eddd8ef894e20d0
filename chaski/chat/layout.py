"""A prompt as tokens: text becomes ids, an image becomes rows, with the model's text around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from msgspec import Struct

from chaski.chat.groups import Groups, not_inside, outside, without
from chaski.chat.image_rows import ImageRun, Images, entries, moved_down, whole
from chaski.errors import OptionError
from chaski.model.multimodal import IMAGE_NUMBER, Image

__all__ = [
    "Prompt",
    "lay_out",
    "marked",
    "num_placed_rows",
    "placeholder",
    "prompt_pieces",
    "shown_placeholders",
    "typed_placeholders",
    "unmarked",
    "with_placeholders",
    "without_placeholders",
]

# Letters that Unicode keeps out of texts: no user types them, and `without_placeholders` takes them out.
_BEGIN, _END = "\U0010fffe", "\U0010ffff"
_PLACEHOLDER = re.compile(f"{_BEGIN}([0-9]{{1,9}}){_END}")
_TYPED = re.compile(r"\[img-([0-9]{1,9})\]")

Encode = Callable[[str], list[int]]


class Prompt(Struct, frozen=True):
    """The beginning of a sequence: token ids, and entries below 0 for rows of images (`chat.image_rows`).

    `groups` are the rows that attend to each other.
    """

    tokens: list[int]
    images: Images = ()
    groups: Groups = ()

    def followed_by(self, token_ids: Sequence[int]) -> Prompt:
        """Return the prompt with more tokens after it."""
        return Prompt([*self.tokens, *token_ids], self.images, self.groups)

    def shortened(self, excess: int, keep: int) -> Prompt:
        """Return the prompt without `excess` tokens or more after the first `keep`; no image is cut in part.

        Raises OptionError if an image at the end of the prompt would have to be cut.
        """
        spans = whole(self.images)
        dropped = range(not_inside(keep, spans), outside(keep + excess, spans))
        if dropped.stop >= len(self.tokens):
            raise OptionError(
                "the prompt is too long and ends with an image, which cannot be cut; set "
                "OLLAMA_CONTEXT_LENGTH or num_ctx to more"
            )
        return Prompt(
            self.tokens[: dropped.start] + self.tokens[dropped.stop :],
            moved_down(self.images, dropped),
            without(dropped, self.groups),
        )


def placeholder(index: int) -> str:
    """Return the text that marks the place of an image in a rendered conversation. No user can type it."""
    return f"{_BEGIN}{index}{_END}"


def without_placeholders(data: Any) -> Any:
    """Return a copy of JSON-like data whose texts cannot be taken for a placeholder."""
    match data:
        case str():
            return data.replace(_BEGIN, "\ufffd")
        case Mapping():
            return {without_placeholders(key): without_placeholders(value) for key, value in data.items()}
        case list() | tuple():
            return [without_placeholders(item) for item in data]
        case _:
            return data


def typed_placeholders(text: str) -> str:
    """Return a prompt with placeholders where its user has written `[img-0]`, `[img-1]`, ..."""
    return _TYPED.sub(lambda match: f"{_BEGIN}{match[1]}{_END}", without_placeholders(text))


def shown_placeholders(text: str) -> str:
    """Return a rendered text as people read it: with `[img-0]` for the first image."""
    return _PLACEHOLDER.sub(lambda match: f"[img-{match[1]}]", text)


def with_placeholders(text: str, num_images: int) -> str:
    """Return the text, with placeholders in front of it for the images that it has none for."""
    placed = {int(number) for number in _PLACEHOLDER.findall(text)}
    return "".join(placeholder(index) for index in range(num_images) if index not in placed) + text


def num_placed_rows(text: str, images: Sequence[Image]) -> int:
    """Return the number of rows for all placeholders of a text; a repeated placeholder counts each time."""
    numbers = (int(match[1]) for match in _PLACEHOLDER.finditer(text))
    return sum(images[number].num_rows for number in numbers if number < len(images))


def lay_out(
    text: str, images: Sequence[Image], first: Encode, other: Encode, is_bidirectional: bool = False
) -> Prompt:
    """Return the prompt of a text with images at its placeholders; a placeholder without an image is shown.

    The text that a model puts around an image is encoded together with the text next to it. `first` encodes
    the first piece of text, `other` the others.
    """
    tokens: list[int] = []
    runs: list[ImageRun] = []
    encode = first
    for piece in prompt_pieces(text, images):
        if isinstance(piece, str):
            tokens += encode(piece)
            encode = other
        else:
            run = ImageRun(
                range(len(tokens), len(tokens) + len(piece.positions)), piece.image, piece.first_row
            )
            tokens += entries(run)
            runs.append(run)
    groups = tuple(run.positions for run in runs) if is_bidirectional else ()
    return Prompt(tokens, tuple(runs), groups)


def marked(prompt: Prompt, images: Sequence[Image]) -> list[int]:
    """Return the tokens of a prompt in their public form: rows of image k are -1 - k."""
    numbers = {image.digest: number for number, image in reversed(list(enumerate(images)))}
    ids = list(prompt.tokens)
    for run in prompt.images:
        positions = slice(run.positions.start, run.positions.stop)
        ids[positions] = [-1 - numbers[run.image.digest]] * len(run.positions)
    return ids


def unmarked(ids: Sequence[int], images: Sequence[Image], is_bidirectional: bool = False) -> Prompt:
    """Return the prompt whose ids `marked` returned. Raises OptionError if rows of an image are missing."""
    tokens: list[int] = []
    runs: list[ImageRun] = []
    next_row = [0] * len(images)
    for token, same in groupby(ids):
        count = len(list(same))
        if token >= 0:
            tokens += [token] * count
            continue
        if -1 - token >= len(images):
            raise OptionError(f"token {token} is a row of image {-1 - token}, but there are {len(images)}")
        image = images[-1 - token]
        while count:
            first = next_row[-1 - token]
            length = min(count, image.num_rows - first)
            runs.append(ImageRun(range(len(tokens), len(tokens) + length), image, first))
            tokens += entries(runs[-1])
            next_row[-1 - token] = (first + length) % image.num_rows
            count -= length
    if any(next_row):
        raise OptionError("an image in the prompt has lost some of its rows")
    return Prompt(tokens, tuple(runs), tuple(run.positions for run in runs) if is_bidirectional else ())


def prompt_pieces(text: str, images: Sequence[Image]) -> Iterator[str | ImageRun]:
    """Yield the texts and runs of a prompt; the positions of a run are right in number only.

    The first piece is always a text, and no other text is empty or follows a text.
    """
    return _joined(_pieces(text, images))


def _pieces(text: str, images: Sequence[Image]) -> Iterator[str | ImageRun]:
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        if int(match[1]) < len(images):
            yield shown_placeholders(text[end : match.start()])
            yield from _of_image(images[int(match[1])], int(match[1]))
            end = match.end()
    yield shown_placeholders(text[end:])


def _of_image(image: Image, number: int) -> Iterator[str | ImageRun]:
    row = 0
    for part in image.layout:
        if isinstance(part, str):
            yield part.replace(IMAGE_NUMBER, str(number))
        else:
            yield ImageRun(range(part), image, row)
            row += part


def _joined(pieces: Iterator[str | ImageRun]) -> Iterator[str | ImageRun]:
    """Yield the pieces with neighbouring texts joined."""
    text, is_first = "", True
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
            continue
        if text or is_first:
            yield text
        yield piece
        text, is_first = "", False
    if text or is_first:
        yield text
