"""Gemma 3, text (Gemma Team 2025): norms multiply by 1 + weight, and GGUF stores the sum."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import gemma2
from chaski.convert.families.siglip import VISION
from chaski.convert.family import VISION_TENSORS, Family, Row, embeddings, in_layers
from chaski.convert.metadata import Metadata, common_metadata, head_size, refuse_attention_factor, rope
from chaski.convert.tensors import Planned

_PERIOD = 6  # five layers with a window, then one without; GGUF cannot express another order
_LAYERS_OF_27B = 62
# Values that Google's configurations leave out.
DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "tie_word_embeddings": True,
}


def metadata(config: Config, *, is_bidirectional: bool = False) -> Metadata:
    _check(config)
    config.expect("use_bidirectional_attention", is_bidirectional)
    local = rope(config, "sliding_attention").get("rope_theta", float)
    if "rope_parameters" not in config:
        local = config.get("rope_local_base_freq", float)
    entries = refuse_attention_factor(config, common_metadata(config)) | {
        "context_length": config.get("max_position_embeddings", int),
        "rope.freq_base_swa": local,
        "attention.sliding_window": config.get("sliding_window", int),
    }
    if "final_logit_softcapping" in config:
        entries["final_logit_softcapping"] = config.get("final_logit_softcapping", float)
    return entries


def _check(config: Config) -> None:
    """GGUF stores neither the order of the layers nor the scale of the queries; readers assume these."""
    config.expect("hidden_activation", "gelu_pytorch_tanh")
    config.expect("attn_logit_softcapping", None)
    num_layers, size = config.count("num_hidden_layers"), head_size(config)
    if num_layers == _LAYERS_OF_27B:
        size = config.get("hidden_size", int) // config.get("num_attention_heads", int)
    config.require("query_pre_attn_scalar", size)
    kinds = ["sliding_attention", "full_attention"]
    usual = [kinds[layer % _PERIOD == _PERIOD - 1] for layer in range(num_layers)]
    config.expect("layer_types", usual)
    config.expect("sliding_window_pattern", _PERIOD)


def layer(config: Config) -> Iterator[Row]:
    yield from gemma2.layer(config)
    yield Row("attn_q_norm", "self_attn.q_norm", (head_size(config),), shift=1)
    yield Row("attn_k_norm", "self_attn.k_norm", (head_size(config),), shift=1)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names, shift=1)
    yield from in_layers(config, layer(config))


FAMILY = Family("gemma3", metadata, tensors, VISION_TENSORS, VISION, defaults=DEFAULTS)
CHECKPOINTS = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
