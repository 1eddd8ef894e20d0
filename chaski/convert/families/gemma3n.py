"""Gemma 3n (Google 2025): AltUp, LAuReL, sparse gates, and last layers that store no keys or values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from statistics import NormalDist

import numpy as np

from chaski.convert.config import Config
from chaski.convert.families import gemma2, gemma3n_vision, gemma4
from chaski.convert.family import Family, Row, attention, embeddings, feed_forward, in_layer, norm
from chaski.convert.metadata import Metadata, common_metadata, head_size, refuse_attention_factor, rope
from chaski.convert.tensors import Mapped, Planned
from chaski.errors import UnsupportedError

_STATES = 4
_NEAR, _FAR = "sliding_attention", "full_attention"
# Values that Google's configurations leave out.
_DEFAULTS = {"tie_word_embeddings": True, "rope_theta": 1e6, "rope_local_base_freq": 1e4}


def _sized(config: Config) -> Config:
    """Return the settings with one feed-forward size. Some configurations list a size for each layer."""
    sizes = config.values.get("intermediate_size")
    if not isinstance(sizes, list):
        return config
    if not sizes or len(set(map(repr, sizes))) > 1:
        raise UnsupportedError(f"{config.path}: 'intermediate_size' differs from layer to layer")
    return Config(config.path, {"intermediate_size": sizes[0]}).over(config)


def metadata(config: Config) -> Metadata:
    _check(config)
    kinds = config.list("layer_types", str)
    local = rope(config, _NEAR).get("rope_theta", float)
    if "rope_parameters" not in config:
        local = config.get("rope_local_base_freq", float)
    entries = refuse_attention_factor(config, common_metadata(_sized(config))) | {
        "context_length": config.get("max_position_embeddings", int),
        "activation_sparsity_scale": _scales(config, len(kinds)),
        "altup.active_idx": 0,
        "altup.num_inputs": _STATES,
        "attention.shared_kv_layers": config.get("num_kv_shared_layers", int),
        "attention.sliding_window": config.get("sliding_window", int),
        "attention.sliding_window_pattern": [kind == _NEAR for kind in kinds],
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input", int),
        "rope.freq_base_swa": local,
    }
    if isinstance(config.values.get("intermediate_size"), list):
        entries["feed_forward_length"] = config.list("intermediate_size", int)
    if "final_logit_softcapping" in config:
        entries["final_logit_softcapping"] = config.get("final_logit_softcapping", float)
    return entries


def _check(config: Config) -> None:
    config.expect("hidden_activation", "gelu_pytorch_tanh")
    config.expect("attention_bias", False)
    config.expect("altup_num_inputs", _STATES)
    config.expect("altup_active_idx", 0)
    config.expect("altup_correct_scale", True)
    kinds = config.list("layer_types", str)
    if len(kinds) != config.count("num_hidden_layers") or not {_NEAR, _FAR}.issuperset(kinds):
        raise UnsupportedError(f"{config.path}: 'layer_types' does not name a type for each layer")


def _scales(config: Config, num_layers: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return the standard deviations above the mean that leave the given share of gates closed."""
    shares = config.list("activation_sparsity_pattern", float) or [0.0] * num_layers
    if len(shares) != num_layers or not all(type(s) in (int, float) and 0 <= s < 1 for s in shares):
        raise UnsupportedError(f"{config.path}: 'activation_sparsity_pattern' has no share for each layer")
    return np.array([NormalDist().inv_cdf(share) if share else -math.inf for share in shares], np.float32)


def layer(config: Config, stores: bool) -> Iterator[Row]:
    hidden, rank = config.get("hidden_size", int), config.get("laurel_rank", int)
    size = head_size(config)
    keys = {"attn_k", "attn_v"}
    yield from (row for row in attention(config) if stores or row.name not in keys)
    yield Row("attn_q_norm", "self_attn.q_norm", (size,))
    if stores:
        yield Row("attn_k_norm", "self_attn.k_norm", (size,))
    yield from feed_forward(config, config.get("intermediate_size", int))
    for name, source in gemma2.NORMS.items():
        yield norm(config, name, source)
    yield Row("laurel_l", "laurel.linear_left", (rank, hidden))
    yield Row("laurel_r", "laurel.linear_right", (hidden, rank))
    yield norm(config, "laurel_post_norm", "laurel.post_laurel_norm")
    yield Row("altup_router", "altup.modality_router", (_STATES, hidden))
    yield norm(config, "altup_router_norm", "altup.router_norm")
    yield Row("altup_predict_coef", "altup.prediction_coefs", (_STATES**2, _STATES))
    yield Row("altup_correct_coef", "altup.correction_coefs", (_STATES, _STATES))
    yield from gemma4.per_layer_rows(config)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    sized = _sized(config)
    hidden = config.get("hidden_size", int)
    yield from embeddings(config, names)
    yield from gemma4.per_layer_inputs(config)
    for name, source in (
        ("altup_proj", "altup_projections"),
        ("altup_unembd_proj", "altup_unembed_projections"),
    ):
        parts = tuple(f"{source}.{index}.weight" for index in range(_STATES - 1))
        yield Mapped(f"{name}.weight", (_STATES - 1, hidden, hidden), parts, (hidden, hidden))
    num_layers = config.count("num_hidden_layers")
    for index in range(num_layers):
        yield from in_layer(index, layer(sized, index < num_layers - config.get("num_kv_shared_layers", int)))
        scale = f"layers.{index}.altup.correct_output_scale"
        yield Mapped(f"blk.{index}.altup_correct_scale.weight", (hidden,), (scale,))


FAMILY = Family("gemma3n", metadata, tensors, gemma4.UNUSED, gemma3n_vision.VISION, defaults=_DEFAULTS)
CHECKPOINTS = ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration")
