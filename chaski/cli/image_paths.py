"""Paths of images and videos in typed messages, as in `what is in ./cat.png?`, or of dragged files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

__all__ = ["FoundImages", "find_images"]

# A path is recognized by its beginning; bare file names are treated as words.
_BEGIN = re.compile(r"""(?<![\w./~\\])(?!(?<=:)//)(?:~?[/\\]|\.\.?[/\\]|[A-Za-z]:[/\\])""")
_END = re.compile(r"\.(?:jpe?g|png|webp|gif|bmp|mp4|webm|mkv|mov|avi)(?![\w])", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(.)")
_QUOTES = "'\""
_MAX_LENGTH = 4096


class FoundImages(Struct, frozen=True):
    """The image files found in a message.

    text: the message without the paths of the files.
    missing: texts that look like image paths but do not name a file."""

    text: str
    files: tuple[Path, ...] = ()
    missing: tuple[str, ...] = ()


def find_images(text: str) -> FoundImages:
    """Find the image files that a text names by paths starting with /, ./, ../, ~/ or a drive.

    Paths may be quoted, written with escaped blanks as in a shell, or plain.
    """
    files: list[Path] = []
    missing: list[str] = []
    kept: list[str] = []
    end = 0
    for begin in (match.start() for match in _BEGIN.finditer(text)):
        if begin < end:
            continue
        found = next((span for span in _spans(text, begin) if os.path.isfile(span[1])), None)
        if found is None:
            missing += _unbroken(text, begin)
            continue
        stop, path = found
        files.append(Path(path))
        start, stop = _with_quotes(text, begin, stop)
        kept.append(text[end:start])
        end = stop
    return FoundImages("".join([*kept, text[end:]]).strip(), tuple(files), tuple(missing))


def _spans(text: str, begin: int) -> Iterator[tuple[int, str]]:
    """Yield the possible end positions of a path that starts at `begin`, each with the path."""
    line_end = text.find("\n", begin)
    line_end = line_end if line_end >= 0 else len(text)
    for match in _END.finditer(text, begin, min(line_end, begin + _MAX_LENGTH)):
        written = text[begin : match.end()]
        for spelling in dict.fromkeys((written, _ESCAPED.sub(r"\1", written))):
            yield match.end(), os.path.expanduser(spelling)


def _unbroken(text: str, begin: int) -> list[str]:
    """Return the text from `begin` to the end of an image's name, if no blank comes before that end."""
    word = re.match(r"(?:\\.|[^\s'\"\\])+", text[begin:])
    end = word and _END.search(word[0])
    return [word[0][: end.end()]] if word and end else []


def _with_quotes(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the span, extended by a matching pair of quotes around it."""
    is_quoted = begin > 0 and text[begin - 1] in _QUOTES and text[end : end + 1] == text[begin - 1]
    return (begin - 1, end + 1) if is_quoted else (begin, end)
