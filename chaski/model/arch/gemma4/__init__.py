"""Gemma 4 (Google 2026): a text model and image encoders."""

from chaski.model.arch.gemma4.text import Model
from chaski.model.architecture import GELU, Architecture

__all__ = ["ARCHITECTURE", "Model"]

ARCHITECTURE = Architecture(
    "gemma4",
    "Gemma 4, dense, with experts, E2B and E4B",
    tools=("gemma4",),
    thinking=("gemma4",),
    notes="The sound encoder is not supported yet. An assistant (`gemma4-assistant`) works as draft model.",
    reads=(
        "attention.key_length_swa",
        "attention.shared_kv_layers",
        "attention.sliding_window",
        "attention.value_length_swa",
        "embedding_length_per_layer_input",
        "final_logit_softcapping",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    ),
    fixed={
        "attention.causal": (True,),
        "hidden_activation": GELU,
    },
)
