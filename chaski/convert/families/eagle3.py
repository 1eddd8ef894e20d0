"""EAGLE-3 drafts (Li et al. 2025), as EAGLE, SpecForge and NVIDIA publish them, and RedHat's speculators.

They read hidden states of their target, which is given in addition: its tokenizer is theirs, and embeddings
and output layer are its own where the checkpoint has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families import llama
from chaski.convert.family import Family, Row, feed_forward, llama3_factors, norm, rotation
from chaski.convert.metadata import Metadata, head_size
from chaski.convert.tensors import Mapped, Planned, Sources, TensorShape
from chaski.errors import ModelError
from chaski.formats.quant import QuantType

_LAYERS = "eagle_aux_hidden_state_layer_ids"


def metadata(config: Config) -> Metadata:
    if config.count("num_hidden_layers") != 1:
        raise ModelError(f"{config.path}: an EAGLE-3 draft of {config.count('num_hidden_layers')} layers")
    return llama.metadata(config) | {
        "target_layers": _layers(config),
        "target_hidden_size": _target_size(config),
        "norm_before_residual": config.get("norm_before_residual", bool, False),
        "norm_before_fc": config.get("norm_before_fc", bool, False),
    }


def _layers(config: Config) -> list[int]:
    """The layers of the target whose inputs the draft reads; EAGLE's layers by default."""
    own = config.list(_LAYERS, int) or config.part("eagle_config").list(_LAYERS, int)
    if any(type(layer) is not int for layer in own):
        raise ModelError(f"{config.path}: {_LAYERS!r} is {own!r:.80}, no layers")
    count = config.part("target").count("num_hidden_layers")
    return own or [2, count // 2, count - 3]


def _target_size(config: Config) -> int:
    own = config.get("target_hidden_size", int, None)
    return config.part("target").get("hidden_size", int) if own is None else own


class TokenIds(Struct, frozen=True):
    """The target's id of each token of a smaller vocabulary. Checkpoints store the distance between both."""

    name: str
    shape: TensorShape
    vocab_size: int

    packed = QuantType.I64

    @property
    def sources(self) -> Mapping[str, TensorShape]:
        return {self.name: self.shape}

    def chunks(self, sources: Sources, type: QuantType) -> Iterator[NDArray[np.uint8]]:
        source = sources[self.name]
        if source.dtype not in ("I32", "I64"):
            raise ModelError(f"{source.path}: tensor {self.name!r} holds {source.dtype}, not whole numbers")
        ids = source.data.astype(np.int64) + np.arange(len(source.data))
        if ids.min() < 0 or ids.max() >= self.vocab_size or len(np.unique(ids)) < len(ids):
            raise ModelError(
                f"{source.path}: tensor {self.name!r} has duplicate token ids, or ids outside of its "
                f"target's vocabulary of {self.vocab_size}"
            )
        yield ids.astype("<i8").view(np.uint8)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    config.expect("attention_bias", False)
    hidden, vocab_size = config.get("hidden_size", int), config.get("vocab_size", int)
    num_proposed = config.get("draft_vocab_size", int, vocab_size)
    size = len(_layers(config)) * _target_size(config)
    if "embed_tokens.weight" in names:
        yield Mapped("token_embd.weight", (vocab_size, hidden), ("embed_tokens.weight",))
    if "lm_head.weight" in names:
        yield Mapped("output.weight", (num_proposed, hidden), ("lm_head.weight",))
    if "d2t" in names:
        yield TokenIds("d2t", (num_proposed,), config.part("target").get("vocab_size", int))
    if config.get("norm_before_fc", bool, False):
        yield Mapped("enc.output_norm.weight", (size,), ("input_norm.weight",))
    yield Mapped("fc.weight", (hidden, size), ("fc.weight",))
    yield Mapped("output_norm.weight", (hidden,), ("norm.weight",))
    yield from llama3_factors(config)
    prefix = "midlayer" if any(name.startswith("midlayer.") for name in names) else "layers.0"
    for row in _rows(config):
        name = f"blk.0.{row.name}{row.suffix}"
        yield Mapped(name, row.shape, (f"{prefix}.{row.source}{row.suffix}",), arrange=row.arrange)


def _rows(config: Config) -> Iterator[Row]:
    """Yield the tensors of the layer, whose attention reads embeddings concatenated with fused states."""
    hidden, size = config.get("hidden_size", int), head_size(config)
    heads = config.get("num_attention_heads", int)
    kv_heads = config.get("num_key_value_heads", int, heads)
    yield norm(config, "attn_norm", "input_layernorm")
    yield norm(config, "attn_norm_2", "hidden_norm")
    yield Row("attn_q", "self_attn.q_proj", (heads * size, 2 * hidden), arrange=rotation(heads))
    yield Row("attn_k", "self_attn.k_proj", (kv_heads * size, 2 * hidden), arrange=rotation(kv_heads))
    yield Row("attn_v", "self_attn.v_proj", (kv_heads * size, 2 * hidden))
    yield Row("attn_output", "self_attn.o_proj", (hidden, heads * size))
    yield norm(config, "ffn_norm", "post_attention_layernorm")
    yield from feed_forward(config, config.get("intermediate_size", int))


FAMILY = Family("eagle3", metadata, tensors, unused=("t2d", r"verifier_.*"), needs_target=True)
CHECKPOINTS = ("Eagle3DraftModel", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "LlamaForCausalLMEagle3")
