"""Documents in conversations: those that are text are read into the prompt, others leave a note there."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as Base64Error
from mimetypes import guess_type

from chaski.errors import OptionError
from chaski.server.fields.ignored import Ignored

__all__ = ["document", "read_file", "unread"]

_TEXTS = ("json", "xml", "yaml", "javascript", "typescript", "toml", "csv", "sql", "sh", "python")


def document(text: str, title: str = "", context: str = "") -> str:
    """The text of a document in a prompt; `context` is the client's description of it."""
    named = f' title="{title}"' if title else ""
    about = f"{context}\n" if context else ""
    return f"<document{named}>\n{about}{text}\n</document>"


def read_file(data: str, media_type: str, title: str, where: str, ignored: Ignored) -> str:
    """A file in base64 as it stands in a prompt. One that is no text leaves a note, and is noted as ignored.

    data: may be a data URL, which then says the type. Raises OptionError for what is no base64.
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
    """The note for a document that this server does not read."""
    ignored.add("document", kind)
    return document(f"(a document of type {kind} that could not be read)", title)


def _text(content: bytes, media_type: str) -> str | None:
    """The text that a file is, if it is one."""
    kind, _, subtype = media_type.lower().partition("/")
    if media_type and kind != "text" and not subtype.endswith(_TEXTS):
        return None
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
