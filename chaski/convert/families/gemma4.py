"""Gemma 4, text (Google 2026): full-attention layers have larger heads, and the last layers store no keys."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np
from msgspec import Struct

from chaski.convert.config import Config
from chaski.convert.families import gemma4_vision
from chaski.convert.family import Family, Row, embeddings, feed_forward, in_layer, norm
from chaski.convert.metadata import Metadata, common_metadata, rope
from chaski.convert.tensors import Constant, Mapped, Padded, Planned
from chaski.errors import UnsupportedError

_NEAR, _FAR = "sliding_attention", "full_attention"
_STILL = 1e30  # divides the frequency of a pair that is not rotated
# Image encoders that are not configured, and tensors that no model here uses.
UNUSED = (r"(vision_tower|embed_vision|vision_embedder)\..*", *gemma4_vision.UNUSED)
# Values that configurations leave out.
DEFAULTS = {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "tie_word_embeddings": True}


class _Layer(Struct, frozen=True):
    """The sizes that differ between layers. `stores` is None if keys serve as values."""

    is_near: bool
    head_size: int
    kv_heads: int
    ffn_size: int
    stores: tuple[str, ...]


def _layers(config: Config) -> list[_Layer]:
    kinds = config.list("layer_types", str)
    if len(kinds) != config.count("num_hidden_layers") or not {_NEAR, _FAR}.issuperset(kinds):
        raise UnsupportedError(f"{config.path}: 'layer_types' does not name a type for each layer")
    near = config.get("head_dim", int), config.get("num_key_value_heads", int)
    far = _of_far_layers(config, kinds)
    first_shared = len(kinds) - config.get("num_kv_shared_layers", int)
    ffn_size = config.get("intermediate_size", int)
    is_wide = config.get("use_double_wide_mlp", bool, False)
    same = config.get("attention_k_eq_v", bool, False)
    return [
        _Layer(
            kind == _NEAR,
            *(near if kind == _NEAR else far),
            ffn_size * (2 if is_wide and index >= first_shared else 1),
            () if index >= first_shared else ("k",) if same and kind == _FAR else ("k", "v"),
        )
        for index, kind in enumerate(kinds)
    ]


def _of_far_layers(config: Config, kinds: list[str]) -> tuple[int, int]:
    """Return the head size and the number of key/value heads, from old or new settings."""
    size = config.get("global_head_dim", int, None)
    heads = config.get("num_global_key_value_heads", int, None)
    each = config.part("per_layer_config")
    own = each.part(str(kinds.index(_FAR))) if _FAR in kinds else each
    size = size or own.get("head_dim", int, config.get("head_dim", int))
    heads = heads or own.get("num_key_value_heads", int, config.get("num_key_value_heads", int))
    return size, heads


def metadata(config: Config) -> Metadata:
    _check(config)
    layers = _layers(config)
    far_size, _ = _of_far_layers(config, config.list("layer_types", str))
    near_size = config.get("head_dim", int)
    entries = common_metadata(config, rope_tensors=("proportional",)) | {
        "context_length": config.get("max_position_embeddings", int),
        "attention.key_length": far_size,
        "attention.value_length": far_size,
        "attention.key_length_swa": near_size,
        "attention.value_length_swa": near_size,
        "attention.sliding_window": config.get("sliding_window", int),
        "attention.sliding_window_pattern": [layer.is_near for layer in layers],
        "attention.shared_kv_layers": config.get("num_kv_shared_layers", int),
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input", int),
        "rope.dimension_count": far_size,
        "rope.dimension_count_swa": near_size,
        "rope.freq_base_swa": rope(config, _NEAR).get("rope_theta", float),
    }
    if len({layer.kv_heads for layer in layers}) > 1:
        entries["attention.head_count_kv"] = [layer.kv_heads for layer in layers]
    if config.get("use_double_wide_mlp", bool, False):
        entries["feed_forward_length"] = [layer.ffn_size for layer in layers]
    if config.get("enable_moe_block", bool, False):
        entries |= {
            "expert_count": config.get("num_experts", int),
            "expert_used_count": config.get("top_k_experts", int),
            "expert_feed_forward_length": config.get("moe_intermediate_size", int),
        }
    if "final_logit_softcapping" in config:
        entries["final_logit_softcapping"] = config.get("final_logit_softcapping", float)
    return entries


def _check(config: Config) -> None:
    config.expect("hidden_activation", "gelu_pytorch_tanh")
    config.expect("attention_bias", False)
    config.expect("use_bidirectional_attention", None, "vision")
    if rope(config, _NEAR).get("rope_type", str, "default") != "default":
        raise UnsupportedError(
            f"{config.path}: only plain rotary embeddings are known for layers with a window"
        )


def layer(config: Config, own: _Layer) -> Iterator[Row]:
    hidden, size = config.get("hidden_size", int), own.head_size
    heads = config.get("num_attention_heads", int)
    yield norm(config, "attn_norm", "input_layernorm")
    yield Row("attn_q", "self_attn.q_proj", (heads * size, hidden))
    yield Row("attn_q_norm", "self_attn.q_norm", (size,))
    yield Row("attn_output", "self_attn.o_proj", (hidden, heads * size))
    for letter in own.stores:
        yield Row(f"attn_{letter}", f"self_attn.{letter}_proj", (own.kv_heads * size, hidden))
    if own.stores:
        yield Row("attn_k_norm", "self_attn.k_norm", (size,))
    yield norm(config, "post_attention_norm", "post_attention_layernorm")
    yield norm(config, "ffn_norm", "pre_feedforward_layernorm")
    yield from feed_forward(config, own.ffn_size)
    yield norm(config, "post_ffw_norm", "post_feedforward_layernorm")
    if config.get("enable_moe_block", bool, False):
        yield Row("ffn_gate_inp", "router.proj", (config.get("num_experts", int), hidden))
        yield norm(config, "post_ffw_norm_1", "post_feedforward_layernorm_1")
        yield norm(config, "pre_ffw_norm_2", "pre_feedforward_layernorm_2")
        yield norm(config, "post_ffw_norm_2", "post_feedforward_layernorm_2")
    if config.get("hidden_size_per_layer_input", int):
        yield from per_layer_rows(config)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    layers = _layers(config)
    if config.get("hidden_size_per_layer_input", int):
        yield from per_layer_inputs(config)
    for index, own in enumerate(layers):
        yield from in_layer(index, layer(config, own))
        for name, source, shape in _plain_parameters(config):
            yield Mapped(f"blk.{index}.{name}", shape, (f"layers.{index}.{source}",))
    yield Constant("rope_freqs.weight", _rope_factors(config))  # the head size is checked at this point


def per_layer_inputs(config: Config) -> Iterator[Planned]:
    """Yield the tensors of the per-layer embeddings. Image and audio tokens, which have none, get zeros."""
    hidden, size = config.get("hidden_size", int), config.get("hidden_size_per_layer_input", int)
    vocab_size = config.get("vocab_size", int)
    count = config.get("vocab_size_per_layer_input", int, vocab_size)
    width = config.count("num_hidden_layers") * size
    table = Mapped("per_layer_token_embd.weight", (count, width), ("embed_tokens_per_layer.weight",))
    yield Padded(table, max(0, vocab_size - count))
    yield Mapped("per_layer_model_proj.weight", (width, hidden), ("per_layer_model_projection.weight",))
    yield Mapped("per_layer_proj_norm.weight", (size,), ("per_layer_projection_norm.weight",))


def per_layer_rows(config: Config) -> Iterator[Row]:
    """Yield a layer's tensors for the per-layer embeddings."""
    hidden, size = config.get("hidden_size", int), config.get("hidden_size_per_layer_input", int)
    yield Row("inp_gate", "per_layer_input_gate", (size, hidden))
    yield Row("proj", "per_layer_projection", (hidden, size))
    yield norm(config, "post_norm", "post_per_layer_input_norm")


def _plain_parameters(config: Config) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield the tensors of a layer whose checkpoint names have no suffix."""
    yield "layer_output_scale.weight", "layer_scalar", (1,)
    if config.get("enable_moe_block", bool, False):
        hidden, inner = config.get("hidden_size", int), config.get("moe_intermediate_size", int)
        count = config.get("num_experts", int)
        yield "ffn_gate_inp.scale", "router.scale", (hidden,)
        yield "ffn_gate_up_exps.weight", "experts.gate_up_proj", (count, 2 * inner, hidden)
        yield "ffn_down_exps.weight", "experts.down_proj", (count, hidden, inner)
        yield "ffn_down_exps.scale", "router.per_expert_scale", (count,)


def _rope_factors(config: Config) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return the divisors of frequencies for full-attention layers, which rotate only some of the pairs."""
    settings = rope(config, _FAR)
    if (
        settings.get("rope_type", str, "default") != "proportional"
        or settings.get("factor", float, 1.0) != 1.0
    ):
        raise UnsupportedError(
            f"{config.path}: only a proportional rotary embedding without a factor is known"
        )
    size, _ = _of_far_layers(config, config.list("layer_types", str))
    turning = int(size * settings.get("partial_rotary_factor", float, 1.0) / 2)
    return np.where(np.arange(size // 2) < turning, np.float32(1), np.float32(_STILL))


FAMILY = Family("gemma4", metadata, tensors, UNUSED, gemma4_vision.VISION, defaults=DEFAULTS, has_merges=True)
CHECKPOINTS = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
