"""`Sendable`: the base of typed values that another process may send or receive."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Sendable"]


class Sendable(Struct, frozen=True, tag=True, array_like=True, repr_omit_defaults=True):
    """A message between processes, encoded as the array of its class name and its fields.

    A new field has a default and comes last, so that the version before understands the message: it ignores
    further fields, and missing ones have their defaults.

    `chaski.runner.channels.worker.codec` lists the messages, and encodes and decodes them.
    """
