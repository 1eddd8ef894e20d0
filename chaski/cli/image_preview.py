"""Image previews on terminals that support them."""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import BytesIO

import click

from chaski.errors import ImageError, MissingPackageError
from chaski.image import open_image

__all__ = ["preview", "show_preview"]

_SIZE = (320, 240)  # maximum width and height in pixels
_CHUNK = 4096  # maximum base64 characters in one sequence of kitty's protocol
_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_KITTY_PROGRAMS = ("ghostty", "kitty")
_ITERM_PROGRAMS = ("iTerm.app", "WezTerm")
_MULTIPLEXERS = ("TMUX", "STY")


def show_preview(data: bytes) -> None:
    """Print a preview of an image file if the terminal supports images."""
    if sys.stdout.isatty() and (text := preview(data, os.environ)):
        click.echo(text, color=True)


def preview(data: bytes, environment: Mapping[str, str]) -> str:
    """Return the terminal sequence that shows an image file, or "" if the terminal does not support it."""
    encode = _encoder(environment)
    if encode is None:
        return ""
    with suppress(ImageError, MissingPackageError):  # a server may decode what this process cannot
        return encode(_small_png(data))
    return ""


def _encoder(environment: Mapping[str, str]) -> Callable[[bytes], str] | None:
    """Return the encoder for the terminal that the environment names.

    The terminal is not queried, because its reply would mix with the user's keystrokes.
    """
    if any(environment.get(name) for name in _MULTIPLEXERS):
        return None
    program = environment.get("TERM_PROGRAM", "")
    is_kitty = environment.get("TERM") in _KITTY_TERMS or program in _KITTY_PROGRAMS
    if is_kitty or environment.get("KITTY_WINDOW_ID"):
        return _kitty
    if program in _ITERM_PROGRAMS or environment.get("LC_TERMINAL") == "iTerm2":
        return _iterm
    return None


def _small_png(data: bytes) -> bytes:
    """Return the picture re-encoded as PNG. Terminals never receive bytes of the user's file."""
    pixels = open_image(data)
    from PIL import Image

    picture = Image.fromarray(pixels)
    picture.thumbnail(_SIZE)
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def _kitty(png: bytes) -> str:
    """Return kitty's graphics sequence that transmits and shows a picture without a reply."""
    return "".join(_kitty_parts(b64encode(png).decode()))


def _kitty_parts(text: str) -> Iterator[str]:
    for begin in range(0, len(text), _CHUNK):
        control = "a=T,f=100,q=2," if begin == 0 else "q=2,"
        has_more = int(begin + _CHUNK < len(text))
        yield f"\x1b_G{control}m={has_more};{text[begin : begin + _CHUNK]}\x1b\\"


def _iterm(png: bytes) -> str:
    """Return iTerm2's sequence for an inline picture."""
    return f"\x1b]1337;File=inline=1;size={len(png)};preserveAspectRatio=1:{b64encode(png).decode()}\x07"
