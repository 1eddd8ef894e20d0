"""Messages about blobs of the store, with the names of their models."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress

from chaski.errors import ChaskiError
from chaski.names import DEFAULT_TAG, Digest, ModelName
from chaski.store.store import Store

__all__ = ["with_model_names"]

_BLOB = re.compile(r"(?:[^\s'\"]*/)?sha256-([0-9a-f]{64})")


def with_model_names(text: str, typed: Collection[str] = ()) -> str:
    """Replace names and paths of blobs in a message by the name of a model that uses them.

    typed: words of the user; one of them that names such a model is preferred.
    """
    if "sha256-" not in text:
        return text
    return _BLOB.sub(lambda found: _name_of(Digest(found[1]), typed) or found[0], text)


def _name_of(digest: Digest, typed: Collection[str]) -> str | None:
    store = Store.default()
    users: list[ModelName] = []
    for name in store.names():
        with suppress(ChaskiError):
            if any(layer.digest == digest for layer in store.entry(name).manifest.blobs):
                users.append(name)
    for word in typed:
        with suppress(ChaskiError):
            if ModelName.parse(word) in users:
                return word
    return users[0].short.removesuffix(f":{DEFAULT_TAG}") if users else None
