"""Documents in conversations: the prompt contains the text of text files, and a note for other files."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from mimetypes import guess_type

from chaski.errors import OptionError
from chaski.server.fields.ignored import Ignored

__all__ = ["document", "read_file", "unread"]

_TEXTS = ("json", "xml", "yaml", "javascript", "typescript", "toml", "csv", "sql", "sh", "python")


def document(text: str, title: str = "", context: str = "") -> str:
    """Return the text of a document for a prompt. `context` is the client's description of it."""
    named = f' title="{title}"' if title else ""
    about = f"{context}\n" if context else ""
    return f"<document{named}>\n{about}{text}\n</document>"


def read_file(data: str, media_type: str, title: str, where: str, ignored: Ignored) -> str:
    """Return the text of a file for a prompt; a note if the file is not text, which is recorded as ignored.

    data: base64 or a data URL, whose type replaces `media_type`

    Raises OptionError if the data is not base64.
    """
    if data.startswith("data:"):
        head, _, data = data.partition(",")
        media_type = head.removeprefix("data:").partition(";")[0] or media_type
    media_type = media_type or guess_type(title)[0] or ""
    try:
        content = b64decode(data, validate=True)
    except (Base64Error, ValueError) as error:
        raise OptionError(f"{where} is not base64: {error}") from None
    text = _text(content, media_type)
    if text is not None:
        return document(text, title)
    return unread(media_type or "unknown", title, ignored)


def unread(kind: str, title: str, ignored: Ignored) -> str:
    """Return the note for a document that this server cannot read, and record it as ignored."""
    ignored.add("document", kind)
    return document(f"(a document of type {kind} that could not be read)", title)


def _text(content: bytes, media_type: str) -> str | None:
    """Return the text of a file; None if the file is not text."""
    kind, _, subtype = media_type.lower().partition("/")
    if media_type and kind != "text" and not subtype.endswith(_TEXTS):
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
