"""Talkie 1930 (2026), whose rope turns in the other direction than GGUF's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

import numpy as np

from chaski.convert.config import Config
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata, common_metadata, head_size
from chaski.convert.tensors import Concatenated, Mapped, Planned
from chaski.errors import ModelError
from chaski.formats.quant import as_float32
from chaski.formats.safetensors import SafeTensor

_GAIN = "lm_head_gain.w_g"
_MATRICES = {
    "attn_v": "attn.attn_value.weight",
    "attn_output": "attn.attn_resid.weight",
    "ffn_gate": "mlp.mlp_gate.weight",
    "ffn_up": "mlp.mlp_linear.weight",
    "ffn_down": "mlp.mlp_resid.weight",
}
_NUMBERS = {
    "attn_output.scale": "attn_gain.a_g",
    "ffn_down.scale": "mlp_gain.a_g",
    "layer_output_scale.weight": "embed_skip.a_g",
}


def metadata(config: Config) -> Metadata:
    eps = {"rms_norm_eps": float(np.finfo(np.float32).eps)}
    entries = common_metadata(config.over(Config(config.path, eps)))
    if "num_key_value_heads" not in config:
        del entries["attention.head_count_kv"]
    return entries


def measured(config: Config, tensors: Mapping[str, SafeTensor]) -> Metadata:
    gain = tensors.get(_GAIN)
    if gain is None or gain.data.size != 1:
        raise ModelError(f"{config.path}: the checkpoint has no number {_GAIN!r}, the factor of its logits")
    return {"talkie.logit_scale": float(as_float32(gain.data).reshape(-1)[0])}


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden = config.get("hidden_size", int)
    table = config.get("vocab_size", int), hidden
    yield Mapped("token_embd.weight", table, ("embed.weight",))
    yield Mapped("output.weight", table, ("lm_head.weight" if "lm_head.weight" in names else "lm_head",))
    for layer in range(config.count("num_hidden_layers")):
        yield from _layer(config, f"blk.{layer}", f"blocks.{layer}")


def _layer(config: Config, block: str, source: str) -> Iterator[Planned]:
    hidden, ffn = config.get("hidden_size", int), config.get("intermediate_size", int)
    heads, size = config.get("num_attention_heads", int), head_size(config)
    kv_heads = config.get("num_key_value_heads", int, heads)
    yield _turned(f"{block}.attn_q.weight", f"{source}.attn.attn_query.weight", heads, size, hidden)
    yield _turned(f"{block}.attn_k.weight", f"{source}.attn.attn_key.weight", kv_heads, size, hidden)
    yield Mapped(
        f"{block}.attn_q_norm.weight", (heads, 1), (f"{source}.attn.head_gain.head_g",), source_shape=(heads,)
    )
    shapes = {"attn_v": (kv_heads * size, hidden), "attn_output": (hidden, heads * size)}
    shapes |= {"ffn_down": (hidden, ffn)}
    for name, own in _MATRICES.items():
        yield Mapped(f"{block}.{name}.weight", shapes.get(name, (ffn, hidden)), (f"{source}.{own}",))
    for name, own in _NUMBERS.items():
        yield Mapped(f"{block}.{name}", (1,), (f"{source}.{own}",))


def _turned(name: str, source: str, heads: int, size: int, columns: int) -> Concatenated:
    """Return the rows of `heads` heads, the second halves with the other sign."""
    half = size // 2

    def part(first: int, is_second: bool) -> Mapped:
        return Mapped(
            name,
            (half, columns),
            (source,),
            (heads * size, columns),
            lambda rows: rows[first : first + half],
            function=np.negative if is_second else None,
        )

    halves = range(2 * heads)
    return Concatenated(name, tuple(part(index * half, index % 2 == 1) for index in halves))


FAMILY = Family("talkie", metadata, tensors, measured=measured, unused=(r"lm_head_gain\..*",))
CHECKPOINTS = ("TalkieForCausalLM",)
