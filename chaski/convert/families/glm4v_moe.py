"""GLM-4.5V and GLM-4.6V (GLM-V Team 2025): GLM 4.5, rotated by coordinates, with an encoder of images."""

from __future__ import annotations

from chaski.convert.config import Config
from chaski.convert.derived import derived_family
from chaski.convert.families import glm4moe, glm4v, qwen_vision
from chaski.convert.metadata import Metadata


def metadata(config: Config) -> Metadata:
    return glm4moe.metadata(config) | qwen_vision.sections(config, glm4v.SECTIONS)


FAMILY = derived_family("glm4moe", metadata, unused=glm4v.UNUSED, vision=glm4v.VISION)
CHECKPOINTS = ("Glm4vMoeForConditionalGeneration",)
