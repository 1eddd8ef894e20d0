"""Standard streams that are closed by the parent, fail, or cannot show every character.

If descriptor 0, 1 or 2 is closed, the next file or socket gets that number. Data for the standard stream then
goes there, also in child processes.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["OutputLostError", "open_missing", "prepare_streams", "valid_text"]

_NAMES = ("stdin", "stdout", "stderr")
_REPLACED = "chaski_replaced"
_ASCII = "chaski_ascii"
# Handlers that the user did not choose. With "strict", a character that is not in the encoding is an error.
_USUAL_HANDLERS = ("strict", "surrogateescape", "backslashreplace")
# Characters of Unicode without a decomposition into ASCII, each followed by what resembles it.
_SIMILAR = {
    **dict.fromkeys("\u2018\u2019\u201a\u2032", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u2033", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2500\u2501", "-"),
    **dict.fromkeys("\u2022\u25cf\u25aa\u00b7", "*"),
    **dict.fromkeys("\u2502\u2503\u2595\u258f", "|"),
    **dict.fromkeys("\u250c\u2510\u2514\u2518\u251c\u2524\u252c\u2534\u253c", "+"),
    **dict.fromkeys("\u200b\u200c\u200d\ufe0f\ufeff", ""),
    **dict(zip("\u2588\u2592\u2593\u2591\u2248\u00d7\u00b5\u03bc", "#=+.~xuu", strict=True)),
    **dict(
        zip(
            "\u2192\u2190\u21d2\u2264\u2265\u2260\u00df",
            ["->", "<-", "=>", "<=", ">=", "!=", "ss"],
            strict=True,
        )
    ),
    "\u20ac": "EUR",
}


class OutputLostError(Exception):
    """The standard output cannot be written. `cause` is the system's error."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror or str(cause))
        self.cause = cause


def open_missing() -> None:
    """Open the null device on descriptors 0, 1 and 2 if they are closed, and Python's streams on them.

    Call it before any other file or socket is opened.
    """
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, "r" if number == 0 else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def prepare_streams() -> None:
    """Let the standard streams report failures and replace characters outside their encoding.

    A failed write to the standard output raises OutputLostError, and failed writes to stderr are dropped.
    Code that reads and writes files would mistake an OSError for an error of its own file. Characters that
    the encoding lacks become similar ones, or `?`. Invalid bytes of the input are replaced.
    """
    codecs.register_error(_REPLACED, _replaced)
    codecs.register(_ascii_codec)
    sys.stdout = _text_on(_Output(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text_on(_Errors(2, "w", closefd=False), sys.stderr)
    if isinstance(sys.stdin, io.TextIOWrapper):
        # ASCII is a part of UTF-8, so nothing that is valid is read differently.
        sys.stdin.reconfigure(encoding="utf-8" if _is_ascii(sys.stdin) else None, errors="replace")


def valid_text(text: str) -> str:
    """Return a text from the command line or a terminal without bytes that Python could not decode.

    They are read as UTF-8 if that is possible, else replaced.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape").decode(errors="replace")
    return text


def _replaced(error: UnicodeError) -> tuple[str | bytes, int]:
    """Replace characters that an encoding lacks. Bytes of file names that are no text stay as they are."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    char, position = error.object[error.start], error.start + 1
    if "\udc80" <= char <= "\udcff" and not error.encoding.startswith(("utf-16", "utf-32")):
        return bytes([ord(char) - 0xDC00]), position
    if char in _SIMILAR:
        return _SIMILAR[char], position
    decomposed = unicodedata.normalize("NFKD", char)
    return "".join(filter(str.isascii, decomposed)) or "?", position


def _ascii_codec(name: str) -> codecs.CodecInfo | None:
    """Return ASCII under another name, because click writes UTF-8 to every stream that says ASCII."""
    if name != _ASCII:
        return None
    ascii = codecs.lookup("ascii")
    return codecs.CodecInfo(
        name=name,
        encode=ascii.encode,
        decode=ascii.decode,
        incrementalencoder=ascii.incrementalencoder,
        incrementaldecoder=ascii.incrementaldecoder,
        streamreader=ascii.streamreader,
        streamwriter=ascii.streamwriter,
    )


def _is_ascii(stream: TextIO) -> bool:
    return codecs.lookup(stream.encoding).name == "ascii"


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            raise OutputLostError(error) from error


class _Errors(io.FileIO):
    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            # No stream is left to report the failure.
            return memoryview(data).nbytes


def _text_on(raw: io.FileIO, like: TextIO) -> io.TextIOWrapper:
    """Return a text stream on `raw` with the settings of `like`."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=_ASCII if _is_ascii(like) else like.encoding,
        errors=_REPLACED if like.errors in _USUAL_HANDLERS else like.errors,
        line_buffering=raw.isatty() or getattr(like, "line_buffering", False),
        write_through=getattr(like, "write_through", False),
    )
