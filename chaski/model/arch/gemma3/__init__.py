"""Gemma 3 (Gemma Team 2025): a text model and, in the larger sizes, a SigLIP image encoder."""

from chaski.model.arch.gemma3.text import Model
from chaski.model.architecture import GELU, Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "gemma3",
    "Gemma 3, FunctionGemma",
    tools=("gemma3", "functiongemma"),
    reads=(
        "attention.scale",
        "attention.sliding_window",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "rope.freq_base_swa",
    ),
    fixed={"hidden_activation": GELU},
)
