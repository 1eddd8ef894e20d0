"""Granite 4 without state-space layers, with experts: Granite 3 with experts, with or without a rope."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.families import granitemoe
from chaski.convert.families.granitehybrid import rotation
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    return granitemoe.metadata(config) | rotation(config)


FAMILY = replace(granitemoe.FAMILY, metadata=metadata)
