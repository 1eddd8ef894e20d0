"""The tensors of a family whose conversion follows from names alone.

The native model declares every tensor of its file with name and shape. A table gives the names under which
checkpoints store each; the first that exists is the source. So a family states only what is special.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from chaski.convert.blocks import block_prefixes, num_blocks
from chaski.convert.config import Config
from chaski.convert.family import Family, rotation
from chaski.convert.longrope import longrope_factors
from chaski.convert.metadata import Metadata, llama3_rope_factors
from chaski.convert.tensors import (
    F32,
    Arrange,
    Constant,
    Integers,
    Mapped,
    Planned,
    SideBySide,
    TensorShape,
    as_it_is,
)
from chaski.formats.gguf import GGUFFile, TensorInfo
from chaski.formats.quant import QuantType
from chaski.ml.graph import Weight
from chaski.model.own_blocks import own_blocks
from chaski.model.registry import model_class
from chaski.model.weights import HasWeights

__all__ = ["Special", "Specials", "derived_family", "rotated_heads"]

_OUTSIDE: Mapping[str, str] = {
    "output": "lm_head embed_out output_layer output head",
    "output_norm": "norm final_layernorm final_layer_norm ln_f norm_f final_norm ln_out "
    "encoder.final_layernorm",
    "position_embd": "wpe embed_positions",
    "token_embd": "embed_tokens wte word_embeddings embed_in embeddings embedding tok_embeddings "
    "embedding.word_embeddings",
    "token_embd_norm": "word_embeddings_layernorm embedding_norm pre_ln",
}
_LAYERS = ("layers", "h", "blocks", "encoder.layers", "layers.layers")
_IN_LAYER: Mapping[str, str] = {
    "attn_k": "self_attn.k_proj attention.k_proj attn.k_proj mixer.k_proj attn.attention.k_proj attention.wk",
    "attn_k_norm": "self_attn.k_norm self_attn.k_layernorm self_attn.key_layernorm attention.key_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_norm": "input_layernorm ln_1 norm_1 operator_norm attention_norm attention_layernorm ln1 norm "
    "pre_mixer_norm ln_attn attn_norm",
    "attn_output": "self_attn.o_proj attention.o_proj self_attn.out_proj attn.out_proj mixer.o_proj "
    "self_attn.dense self_attention.dense attention.dense attn.c_proj attn.attention.out_proj attention.wo",
    "attn_q": "self_attn.q_proj attention.q_proj attn.q_proj mixer.q_proj attn.attention.q_proj attention.wq",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_q_norm": "self_attn.q_norm self_attn.q_layernorm self_attn.query_layernorm "
    "attention.query_layernorm",
    "attn_qkv": "attn.c_attn self_attn.qkv_proj attention.query_key_value self_attention.query_key_value "
    "attn.Wqkv mixer.qkv_proj",
    "attn_sinks": "self_attn.sinks self_attn.attention_sink_bias",
    "attn_v": "self_attn.v_proj attention.v_proj attn.v_proj mixer.v_proj attn.attention.v_proj attention.wv",
    "exp_probs_b": "mlp.gate.e_score_correction_bias mlp.e_score_correction_bias mlp.expert_bias "
    "block_sparse_moe.e_score_correction_bias mixer.gate.e_score_correction_bias mlp.gate.expert_bias "
    "feed_forward.expert_bias mlp.moe_statics.e_score_correction_bias "
    "block_sparse_moe.gate.e_score_correction_bias",
    "ffn_down": "mlp.down_proj feed_forward.down_proj mlp.dense_4h_to_h mlp.c_proj mlp.fc2 mixer.down_proj "
    "feed_forward.w2 ffn.down_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj block_sparse_moe.experts.{e}.w2 feed_forward.experts.{e}.w2 "
    "feed_forward.experts.{e}.down_proj mixer.experts.{e}.down_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj mlp.shared_experts.down_proj mlp.shared_mlp.down_proj "
    "mixer.shared_experts.down_proj",
    "ffn_gate": "mlp.gate_proj feed_forward.gate_proj feed_forward.w1 mlp.c_fc_0",
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj block_sparse_moe.experts.{e}.w1 feed_forward.experts.{e}.w1 "
    "feed_forward.experts.{e}.gate_proj",
    "ffn_gate_inp": "mlp.gate mlp.router block_sparse_moe.gate feed_forward.gate feed_forward.router "
    "mixer.gate mlp.gate.wg mlp.router.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj mlp.shared_experts.gate_proj mlp.shared_mlp.gate_proj",
    "ffn_norm": "post_attention_layernorm pre_feedforward_layernorm ln_2 norm_2 ffn_norm ln2 "
    "pre_ff_layernorm pre_mlp_layernorm pre_moe_layernorm feedforward_layernorm",
    "ffn_up": "mlp.up_proj feed_forward.up_proj mlp.dense_h_to_4h mlp.c_fc mlp.fc1 mixer.up_proj "
    "feed_forward.w3 mlp.gate_up_proj mlp.c_fc_1 ffn.up_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj block_sparse_moe.experts.{e}.w3 feed_forward.experts.{e}.w3 "
    "feed_forward.experts.{e}.up_proj mixer.experts.{e}.up_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj mlp.shared_experts.up_proj mlp.shared_mlp.up_proj "
    "mixer.shared_experts.up_proj",
    "layer_output_norm": "final_layernorm",
    "nextn.eh_proj": "eh_proj fc",
    "nextn.embed_tokens": "embed_tokens",
    "nextn.enorm": "enorm pre_fc_norm_embedding",
    "nextn.hnorm": "hnorm pre_fc_norm_hidden",
    "nextn.shared_head_head": "shared_head.head",
    "nextn.shared_head_norm": "shared_head.norm norm",
    "post_attention_norm": "post_attention_layernorm post_self_attn_layernorm post_mixer_norm",
    "post_ffw_norm": "post_feedforward_layernorm post_mlp_layernorm post_ff_layernorm",
    "ssm_a": "mamba.A_log mixer.A_log",
    "ssm_conv1d": "mamba.conv1d mixer.conv1d",
    "ssm_d": "mamba.D mixer.D",
    "ssm_dt": "mamba.dt_bias mixer.dt_bias mamba.dt_proj mixer.dt_proj",
    "ssm_in": "mamba.in_proj mixer.in_proj",
    "ssm_norm": "mamba.norm mixer.norm",
    "ssm_out": "mamba.out_proj mixer.out_proj",
    "ssm_x": "mamba.x_proj mixer.x_proj",
}
"""The names in checkpoints of the tensors of GGUF, without prefix and suffix, of a layer and outside."""

_KINDS = ("weight", "bias")
_OF_EXPERTS = 3  # dimensions of a stack of matrices
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


class Special(Struct, frozen=True, kw_only=True):
    """How a tensor of a family differs from the others.

    sources: names in the checkpoint, tried before those of the table; `{e}` is the number of an expert.
    parts: what `{e}` stands for instead, for the tensors of a stack.
    is_integer: the tensor consists of whole numbers and stays so.
    arrange, shift, function, source_shape: as in `Mapped`.
    is_stack: a tensor for several matrices is a stack of them, where others have their rows in sequence.
    is_side_by_side: the tensors of `parts` are the columns of a matrix in sequence.
    shown: the shape that a model sees which chooses between its parts by the shapes of tensors in the file.
    """

    sources: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    is_stack: bool = False
    is_side_by_side: bool = False
    is_integer: bool = False
    shown: TensorShape = ()
    arrange: Arrange = as_it_is
    shift: float = 0.0
    function: Callable[[F32], F32] | None = None
    source_shape: Callable[[TensorShape], TensorShape] | None = None


Specials: TypeAlias = Mapping[str, Special]
_USUAL = Special()
_AS_CONVOLUTION = Special(source_shape=lambda shape: (shape[0], 1, *shape[1:]))
_ALWAYS: Specials = {"ssm_conv1d.weight": _AS_CONVOLUTION, "shortconv.conv": _AS_CONVOLUTION}


def rotated_heads(config: Config) -> Specials:
    """Return the arrangement of queries and keys for models whose ropes rotate adjacent elements."""
    heads = config.get("num_attention_heads", int)
    kv_heads = config.get("num_key_value_heads", int, heads)
    return {"attn_q": Special(arrange=rotation(heads)), "attn_k": Special(arrange=rotation(kv_heads))}


def derived_family(
    architecture: str,
    metadata: Callable[[Config], Metadata],
    special: Callable[[Config], Specials] = lambda config: {},
    placeholders: Callable[[Config], Metadata] = lambda config: {},
    **options: Any,
) -> Family:
    """Return a family whose tensors are those that the native model declares.

    metadata: as in `Family`. special: tensors that are not stored under a usual name or not as they are, by
    GGUF's name within the layer, without suffix. placeholders: values for keys that `measured` returns.
    options: further fields of `Family`.
    """

    def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
        derivation = _Derivation(config, names, {**_ALWAYS, **special(config)})
        stored = placeholders(config) | {
            f"{architecture}.{key}": value for key, value in metadata(config).items()
        }
        return derivation.of(_parts(architecture, stored, config, derivation))

    return Family(architecture, metadata, tensors, **options)


def _parts(
    architecture: str, metadata: Metadata, config: Config, derivation: _Derivation
) -> Sequence[HasWeights]:
    """Return the native model and its blocks, with their weights declared, for metadata without a file.

    A model may look at the names of the tensors of a file, but not at their shapes.
    """
    entries: dict[str, Any] = {
        key: np.array(value) if isinstance(value, list) else value for key, value in metadata.items()
    }
    shape = config.get("vocab_size", int), entries[f"{architecture}.embedding_length"]
    table = TensorInfo("token_embd.weight", shape, QuantType.F32, config.path, 0, 0, np.empty(0, np.uint8))
    layers = entries[f"{architecture}.block_count"]
    shapes = {factors.name: factors.shape for factors in longrope_factors(config)}
    shapes |= dict(derivation.in_layers(layers))
    tensors = {name: replace(table, name=name, shape=shown) for name, shown in shapes.items()}
    tensors[table.name] = table
    file = GGUFFile(config.path, {"general.architecture": architecture, **entries}, tensors)
    model = model_class(architecture)(file)
    blocks = own_blocks(model, file)
    return [model] if blocks is None else [model, blocks]


class _Derivation:
    """The search for the sources of tensors in a checkpoint with these names."""

    def __init__(self, config: Config, names: Set[str], special: Specials) -> None:
        self._config, self._names, self._special = config, names, special
        self._layers = config.get("num_hidden_layers", int, 0)

    def in_layers(self, count: int) -> Iterator[tuple[str, TensorShape]]:
        """Yield GGUF's names of the tensors of `count` layers in the checkpoint, and the shapes to show."""
        stems = {**_IN_LAYER, **self._special}
        for name in (f"blk.{layer}.{stem}.weight" for layer in range(count) for stem in stems):
            if self._source(name) is not None:
                yield name, self._rule(name).shown

    def of(self, parts: Sequence[HasWeights]) -> Iterator[Planned]:
        joined = dict(self._joined(chain.from_iterable(part.joined_weights() for part in parts)))
        skipped = {name for _, own in joined.values() for name in own}
        yield from (planned for planned, _ in joined.values())
        yield from longrope_factors(self._config)
        for name, weight in chain.from_iterable(part.weights() for part in parts):
            if name == "rope_freqs.weight":
                factors = llama3_rope_factors(self._config)
                if factors is not None:
                    yield Constant(name, factors)
            elif name not in skipped and not name.startswith("rope_factors_"):
                yield from self._tensor(name, weight)

    def _joined(
        self, joined: Iterable[tuple[str, list[tuple[str, Weight]]]]
    ) -> Iterator[tuple[str, tuple[Mapped, list[str]]]]:
        """Yield the tensors that the checkpoint has in one, with the names of their parts."""
        for whole, parts in joined:
            if self._source(whole) is None or any(self._source(name) for name, _ in parts if name != whole):
                continue
            first, *_ = shapes = [weight.shape for _, weight in parts]
            axis = 1 if len(first) == _OF_EXPERTS else 0
            if self._rule(whole).is_stack:
                shape = (len(parts), *first)
            else:
                shape = (*first[:axis], sum(each[axis] for each in shapes), *first[axis + 1 :])
            yield whole, (self._mapped(whole, shape), [name for name, _ in parts])

    def _tensor(self, name: str, weight: Weight) -> Iterator[Planned]:
        if weight.constant is not None:
            return
        is_optional = weight.optional and not (name == "output.weight" and not self._is_tied())
        if not is_optional or self._source(name) is not None:
            mapped, rule = self._mapped(name, weight.stored or weight.shape), self._rule(name)
            if rule.is_integer:
                yield Integers(name, mapped.shape, next(iter(mapped.sources)))
            else:
                yield SideBySide(name, mapped.shape, mapped.names) if rule.is_side_by_side else mapped

    def _is_tied(self) -> bool:
        is_base = any(str(name).endswith("Model") for name in self._config.list("architectures", str))
        return is_base or self._config.get("tie_word_embeddings", bool, False)

    def _mapped(self, name: str, shape: TensorShape) -> Mapped:
        """Return a tensor with its source, or with the most usual one if the checkpoint has none."""
        source = self._source(name) or next(self._candidates(name))
        rule = self._rule(name)
        if "{e}" in source:
            parts = rule.parts or tuple(map(str, range(shape[0])))
            names, each = tuple(source.replace("{e}", part) for part in parts), shape[1:]
        else:
            names, each = (source,), shape
        stored = each if rule.source_shape is None else rule.source_shape(each)
        return Mapped(name, shape, names, stored, rule.arrange, rule.shift, rule.function)

    def _source(self, name: str) -> str | None:
        part, *_ = self._rule(name).parts or ("0",)
        found = (each for each in self._candidates(name) if each.replace("{e}", part) in self._names)
        return next(found, None)

    def _rule(self, name: str) -> Special:
        match = _GGUF_LAYER.fullmatch(name)
        inner = match[2] if match else name
        return self._special.get(inner, self._special.get(_stem(inner), _USUAL))

    def _candidates(self, name: str) -> Iterator[str]:
        """Yield the names that the checkpoint may have for a tensor, the most usual one first."""
        match = _GGUF_LAYER.fullmatch(name)
        inner = match[2] if match else name
        stem, kind = _stem(inner), inner.rpartition(".")[2]
        table = (_IN_LAYER if match else _OUTSIDE).get(stem, stem)
        sources = (*self._rule(name).sources, *table.split())
        prefixes = list(self._prefixes(int(match[1]))) if match else [""]
        for source in sources:
            for prefix in prefixes:
                yield f"{prefix}{source}.{kind}" if kind in _KINDS else f"{prefix}{source}"
                yield f"{prefix}{source}"

    def _prefixes(self, index: int) -> Iterator[str]:
        """Yield what names of a layer may begin with, or of a block after the layers."""
        yield from (f"{layers}.{index}." for layers in _LAYERS)
        if num_blocks(self._config) and (block := index - self._layers) >= 0:
            yield from block_prefixes(self._layers, block)
            yield "mtp."  # shared by all blocks


def _stem(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    return stem if kind in _KINDS else name
