"""The file with the key of the nodes that compute models together."""

from __future__ import annotations

import stat
from pathlib import Path

from chaski.errors import OptionError

__all__ = ["read_key"]

_LEAST = 32


def read_key(path: str | None) -> bytes:
    """Return the key in a file: a text of at least 32 characters, which only its owner can read.

    Raises OptionError where there is none.
    """
    if path is None:
        raise OptionError(
            "no key is named: CHASKI_NODES_KEY is the path of a file with the same random text on all nodes; "
            "`(umask 077; openssl rand -hex 32 > nodes.key)` makes one"
        )
    file = Path(path).expanduser()
    try:
        key = file.read_bytes().strip()
        mode = file.stat().st_mode
    except OSError as error:
        raise OptionError(f"the key {path} cannot be read: {error.strerror}") from None
    if len(key) < _LEAST:
        raise OptionError(f"the key {path} has {len(key)} characters; it needs {_LEAST} random ones or more")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise OptionError(f"others than its owner may read the key {path}: chmod 600 {path}")
    return key
