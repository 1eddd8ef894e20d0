"""InternLM 2 and 2.5 (Cai et al. 2024): Llama under another name."""

from chaski.model.arch.llama import Model
from chaski.model.architecture import Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "internlm2",
    "InternLM 2 and 2.5, InternVL 2.5 of 2B, 8B and 26B",
    notes="Computed as Llama. Pictures with a projector of InternVL.",
)
