"""DFlash drafts (Chen et al. 2026, arXiv 2602.06036), as z-lab publishes them: layers of Qwen 3 and a fusion.

DSpark drafts have a Markov head and may have a confidence in addition. DFlash 2 drafts have convolutions in
their layers and a selector.

They read hidden states of their target, which is given in addition: its tokenizer is theirs, and embeddings
and output layer are its own where the checkpoint has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from msgspec.structs import replace
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families.qwen3 import normed_attention
from chaski.convert.family import Family, Row, feed_forward, in_layers
from chaski.convert.metadata import Metadata, common_metadata, head_size, rope
from chaski.convert.tensors import Mapped, Planned
from chaski.errors import ModelError

_USUAL_BLOCK = 16
_DSPARK = ("DSparkDraftModel", "Lfm2DSparkDraftModel", "LingDSparkModel", "Qwen3DSparkModel")


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    own = config.part("dflash_config")
    entries = common_metadata(config) | {
        "context_length": config.get("max_position_embeddings", int),
        "block_size": own.get("block_size", int, config.get("block_size", int, _USUAL_BLOCK)),
        "target_layers": [layer + 1 for layer in _layers(config)],
    }
    for key, name in (
        ("logit_scale", "output_multiplier"),
        ("final_logit_softcapping", "final_logit_softcapping"),
        ("embedding_scale", "input_embedding_scale"),
    ):
        value = own.get(name, float, config.get(name, float, None))
        if value is not None and (value > 0 or key != "final_logit_softcapping"):
            entries[key] = value
    causal = config.get("is_causal", bool, own.get("causal", bool, None))
    if causal is not None:
        entries["attention.causal"] = causal
    if _is_dspark(config):
        config.expect("markov_head_type", "vanilla")
        config.expect("confidence_head_with_markov", True)
        config.expect("draft_vocab_size", config.get("vocab_size", int))
        entries["sample_from_anchor"] = config.get("sample_from_anchor", bool, True)
        entries["has_confidence_head"] = config.get("has_confidence_head", bool, False)
    if _has_selector(config):
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        entries |= {name: own.get(name, int) for name in names}
    if "mrope_section" in _rope_of_target(config).values:
        entries["rope.dimension_sections"] = [head_size(config) // 2, 0, 0, 0]
    return entries | _windows(config)


def _is_dspark(config: Config) -> bool:
    return not {*_DSPARK}.isdisjoint(config.list("architectures", str))


def _has_selector(config: Config) -> bool:
    return "DFlash2DraftModel" in config.list("architectures", str)


def _observed(names: Set[str]) -> Mapping[str, Any]:
    return {"has_confidence_head": "confidence_head.proj.weight" in names}


def _layers(config: Config) -> list[int]:
    """Return the layers of the target whose outputs are read."""
    layers = config.part("dflash_config").over(config).list("target_layer_ids", int)
    if not layers or any(type(layer) is not int for layer in layers):
        raise ModelError(f"{config.path}: 'target_layer_ids' of 'dflash_config' is {layers!r:.80}, no layers")
    return layers


def _windows(config: Config) -> Metadata:
    own, kinds = config.part("dflash_config"), config.list("layer_types", str)
    size = own.get("swa_window_size", int, 0) or config.get("sliding_window", int, 0)
    is_used = config.get("use_sliding_window", bool, False) or own.get("use_swa", bool, False)
    if not (is_used and size and kinds):
        return {}
    sliding = [kind == "sliding_attention" for kind in kinds]
    return {"attention.sliding_window": size, "attention.sliding_window_pattern": sliding}


def _rope_of_target(config: Config) -> Config:
    target = config.part("target")
    return rope(target.part("text_config").over(target))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    config.expect("attention_bias", False)
    hidden, vocab_size = config.get("hidden_size", int), config.get("vocab_size", int)
    if "embed_tokens.weight" in names and config.get("has_embed_tokens", bool, True):
        yield Mapped("token_embd.weight", (vocab_size, hidden), ("embed_tokens.weight",))
    if "lm_head.weight" in names and not _is_dspark(config):  # of DSpark, it is the target's
        yield Mapped("output.weight", (vocab_size, hidden), ("lm_head.weight",))
    yield Mapped("fc.weight", (hidden, len(_layers(config)) * hidden), ("fc.weight",))
    yield Mapped("enc.output_norm.weight", (hidden,), ("hidden_norm.weight",))
    yield Mapped("output_norm.weight", (hidden,), ("norm.weight",))
    if _is_dspark(config):
        yield from _markov_head(config, names)
    rows = [*_attention(config), *feed_forward(config, config.get("intermediate_size", int))]
    if _has_selector(config):
        yield from _selector(config)
        rows += _convolutions(config)
    yield from in_layers(config, rows)


def _attention(config: Config) -> Iterator[Row]:
    """Yield attention; the pairs of a rope that turns neighbours become those of two halves."""
    size, is_neox = head_size(config), config.get("rope_is_neox_style", bool, True)

    def in_halves(values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(-1, size // 2, 2, *values.shape[1:]).swapaxes(1, 2)

    for row in normed_attention(config):
        is_turned = row.name.startswith(("attn_q", "attn_k"))
        yield row if is_neox or not is_turned else replace(row, arrange=in_halves)


def _selector(config: Config) -> Iterator[Planned]:
    rank = config.part("dflash_config").get("selector_rank", int)
    for name in ("predecessor", "successor"):
        source = (f"candidate_selector.{name}_codebook",)
        yield Mapped(f"selector_{name}.weight", (config.get("vocab_size", int), rank), source)
    shape = (rank, config.get("hidden_size", int))
    yield Mapped("selector_hidden.weight", shape, ("candidate_selector.hidden_projection.weight",))


def _convolutions(config: Config) -> Iterator[Row]:
    own, hidden = config.part("dflash_config"), config.get("hidden_size", int)
    taps, group = own.get("conv_kernel_size", int), own.get("conv_group_size", int)
    for name, source in (("attn", "attention_conv"), ("ffn", "mlp_conv")):
        yield Row(f"{name}_conv_base", f"{source}.base_kernel", (2, taps, hidden), suffix="")
        yield Row(f"{name}_conv_proj", f"{source}.kernel_projection", (2 * taps * (hidden // group), hidden))


def _markov_head(config: Config, names: Set[str]) -> Iterator[Planned]:
    shape = config.get("vocab_size", int), config.get("markov_rank", int)
    for name in ("markov_w1", "markov_w2"):
        yield Mapped(f"{name}.weight", shape, (f"markov_head.{name}.weight",))
    if "confidence_head.proj.weight" in names:
        size = config.get("hidden_size", int) + shape[1]
        yield Mapped("conf_proj.weight", (1, size), ("confidence_head.proj.weight",))
    if "confidence_head.proj.bias" in names:
        yield Mapped("conf_proj.bias", (1,), ("confidence_head.proj.bias",))


def _roles(config: Config) -> Mapping[str, int]:
    """The token for the unknown tokens of a block."""
    mask = config.part("dflash_config").over(config).get("mask_token_id", int, None)
    return {} if mask is None else {"mask": mask}


FAMILY = Family(
    "dflash",
    metadata,
    tensors,
    needs_target=True,
    roles=_roles,
    observed=_observed,
    unused=(r"lm_head\.weight",),
)
CHECKPOINTS = ("DFlash2DraftModel", "DFlashDraftModel", *_DSPARK)
