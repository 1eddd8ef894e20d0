"""Reading of the keys of latent attention."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml.nn import JoinedLatentAttention, LatentAttention, LatentConfig
from chaski.model.config import DecoderConfig

__all__ = ["latent_attention", "latent_config"]

_EPS = 1e-6  # of the norms of latents, whatever that of the other norms


def latent_config(file: GGUFFile, config: DecoderConfig) -> DecoderConfig:
    """Return the configuration with the one head of the cache, whose keys end with latents, the values.

    Where YaRN has a log multiplier, the factor of scores replaces the magnitude of the rope.
    """
    rope = config.rope
    if rope.yarn is not None and _multiplier(file):
        rope = replace(rope, magnitude=rope.attn_factor)
    rank = file.get(f"{file.architecture}.attention.kv_lora_rank", int)
    heads = (1,) * config.num_layers
    sizes = {"head_size": rank + rope.dims, "value_size": rank}
    return replace(config, kv_heads=heads, **sizes, values_in_keys=True, rope=rope)


def latent_attention(
    file: GGUFFile, config: DecoderConfig, kind: type[LatentAttention] = LatentAttention, eps: float = _EPS
) -> LatentAttention:
    """Return the attention of a layer. Raises ModelError for sizes that do not fit.

    Files of older converters, and some architectures, have one matrix for the keys and values of all heads;
    others get the given `kind`. eps: that of the norms of latents.
    """
    prefix = f"{file.architecture}.attention"
    is_split = f"{prefix}.key_length_mla" in file.metadata
    suffix = "_mla" if is_split else ""
    key = file.get(f"{prefix}.key_length{suffix}", int)
    turned, yarn = config.rope.dims, config.rope.yarn
    if key <= turned:
        raise ModelError(
            f"{file.path}: {prefix}.key_length{suffix} is {key}, not more than the {turned} rotated elements"
        )
    usual = config.hidden_size // config.num_heads
    sizes = LatentConfig(
        size=config.hidden_size,
        heads=config.num_heads,
        rank=config.value_size,
        query_rank=file.get(f"{prefix}.q_lora_rank", int, 0),
        rope=turned,
        plain=key - turned,
        value=file.get(f"{prefix}.value_length{suffix}", int, 0) or usual,
        scale=key**-0.5 * (yarn.magnitude(_multiplier(file)) if yarn is not None else 1.0) ** 2,
        eps=eps,
    )
    return kind(sizes) if is_split else JoinedLatentAttention(sizes)


def _multiplier(file: GGUFFile) -> float:
    # The converter of llama.cpp multiplies it by YaRN's 0.1 for these architectures only.
    return file.get(f"{file.architecture}.rope.scaling.yarn_log_multiplier", float, 0.0) / 0.1
