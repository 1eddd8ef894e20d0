"""The metadata of OpenAI's objects: a few short texts that the server stores and returns."""

from __future__ import annotations

from chaski.errors import OptionError
from chaski.server.fields.reader import Fields

__all__ = ["read_metadata"]

# The limits of OpenAI's API.
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512


def read_metadata(fields: Fields) -> dict[str, str]:
    """Return the metadata of a request; empty if there is none. Raises OptionError beyond OpenAI's limits."""
    found = fields.mapping("metadata")
    if len(found) > _MAX_PAIRS:
        raise OptionError(f"metadata has {len(found)} pairs; at most {_MAX_PAIRS} are allowed")
    for key, value in found.items():
        if len(key) > _MAX_KEY:
            raise OptionError(f"metadata has a key of {len(key)} characters; at most {_MAX_KEY} are allowed")
        if not isinstance(value, str) or len(value) > _MAX_VALUE:
            raise OptionError(f"metadata.{key} must be a string of at most {_MAX_VALUE} characters")
    return dict(found)
