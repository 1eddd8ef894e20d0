"""RWKV 6 (Peng et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from chaski.convert.config import Config
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import F32, Mapped, Planned, TensorShape, transposed

__all__ = ["ANY_LENGTH"]

ANY_LENGTH = 1 << 20  # RWKV has no longest context
_LARGE = 4096  # rows of a model whose small matrices are twice as large


def metadata(config: Config) -> Metadata:
    hidden = config.get("hidden_size", int)
    mix, decay = _ranks(hidden)
    return {
        "context_length": ANY_LENGTH,
        "embedding_length": hidden,
        "block_count": config.get("num_hidden_layers", int),
        "attention.head_count": 0,
        "attention.layer_norm_epsilon": config.get("layer_norm_epsilon", float),
        "rescale_every_n_layers": config.get("rescale_every", int),
        "wkv.head_size": config.get("head_size", int),
        "time_mix_extra_dim": mix,
        "time_decay_extra_dim": decay,
        "feed_forward_length": _ffn_size(config),
    }


def _ranks(hidden: int) -> tuple[int, int]:
    """Return the sizes between the small matrices of mixtures and of decays."""
    return (64, 128) if hidden == _LARGE else (32, 64)


def _ffn_size(config: Config) -> int:
    return config.get("intermediate_size", int, int(config.get("hidden_size", int) * 3.5) // 32 * 32)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden = config.get("hidden_size", int)
    table = config.get("vocab_size", int), hidden
    yield Mapped("token_embd.weight", table, ("embeddings.weight",))
    yield Mapped("output.weight", table, ("head.weight",))
    yield from _norm("token_embd_norm", "blocks.0.pre_ln", hidden)
    yield from _norm("output_norm", "ln_out", hidden)
    for layer in range(config.count("num_hidden_layers")):
        block, source = f"blk.{layer}", f"blocks.{layer}"
        yield from _norm(f"{block}.attn_norm", f"{source}.ln1", hidden)
        yield from _norm(f"{block}.attn_norm_2", f"{source}.ln2", hidden)
        yield from _time_mix(config, f"{block}.time_mix", f"{source}.attention", _divisor(config, layer))
        yield from _channel_mix(
            config, f"{block}.channel_mix", f"{source}.feed_forward", _divisor(config, layer)
        )


def _norm(name: str, source: str, size: int) -> Iterator[Planned]:
    for kind in ("weight", "bias"):
        yield Mapped(f"{name}.{kind}", (size,), (f"{source}.{kind}",))


def _divisor(config: Config, layer: int) -> int:
    """Return the divisor of a layer's outputs: the states are halved every few layers."""
    every = config.get("rescale_every", int)
    return 1 << (layer // every) if every > 0 else 1


def _time_mix(config: Config, name: str, source: str, divisor: int) -> Iterator[Planned]:
    hidden, size = config.get("hidden_size", int), config.get("head_size", int)
    mix, decay = _ranks(hidden)
    one = 1, 1, hidden
    mixtures = tuple(f"{source}.time_maa_{part}" for part in "wkvrg")
    yield Mapped(f"{name}_lerp_x.weight", (hidden,), (f"{source}.time_maa_x",), one)
    yield Mapped(f"{name}_lerp_fused.weight", (5, *one), mixtures, one)
    yield _turned(f"{name}_w1.weight", (5 * mix, hidden), f"{source}.time_maa_w1")
    yield _turned(f"{name}_w2.weight", (5, hidden, mix), f"{source}.time_maa_w2")
    yield Mapped(f"{name}_decay.weight", (hidden,), (f"{source}.time_decay",), one)
    yield _turned(f"{name}_decay_w1.weight", (decay, hidden), f"{source}.time_decay_w1")
    yield _turned(f"{name}_decay_w2.weight", (hidden, decay), f"{source}.time_decay_w2")
    yield Mapped(f"{name}_first.weight", (hidden // size, size), (f"{source}.time_faaaa",))
    yield from _norm(f"{name}_ln", f"{source}.ln_x", hidden)
    for part in ("key", "value", "receptance", "gate"):
        yield Mapped(f"{name}_{part}.weight", (hidden, hidden), (f"{source}.{part}.weight",))
    yield _divided(f"{name}_output.weight", (hidden, hidden), f"{source}.output.weight", divisor)


def _channel_mix(config: Config, name: str, source: str, divisor: int) -> Iterator[Planned]:
    hidden, size = config.get("hidden_size", int), _ffn_size(config)
    for part in "kr":
        yield Mapped(f"{name}_lerp_{part}.weight", (hidden,), (f"{source}.time_maa_{part}",), (1, 1, hidden))
    yield Mapped(f"{name}_key.weight", (size, hidden), (f"{source}.key.weight",))
    yield Mapped(f"{name}_receptance.weight", (hidden, hidden), (f"{source}.receptance.weight",))
    yield _divided(f"{name}_value.weight", (hidden, size), f"{source}.value.weight", divisor)


def _turned(name: str, shape: TensorShape, source: str) -> Mapped:
    return Mapped(name, shape, (source,), (*shape[:-2], shape[-1], shape[-2]), transposed)


def _divided(name: str, shape: TensorShape, source: str, divisor: int) -> Mapped:
    def divide(x: F32) -> F32:
        return x * np.float32(1 / divisor)

    return Mapped(name, shape, (source,), function=divide if divisor > 1 else None)


FAMILY = Family("rwkv6", metadata, tensors)
CHECKPOINTS = ("Rwkv6ForCausalLM",)
