"""Dream (Ye et al. 2025): a Qwen 2.5."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.denoising import BIDIRECTIONAL, mask_role
from chaski.convert.derived import derived_family
from chaski.convert.families import qwen2
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    config.expect("use_sliding_window", False)
    return qwen2.metadata(config) | BIDIRECTIONAL


FAMILY = derived_family("dream", metadata, roles=mask_role)
CHECKPOINTS = ("DreamModel",)
