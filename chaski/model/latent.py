"""Reading of the keys of latent attention."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml.nn import LatentConfig
from chaski.model.config import DecoderConfig
from chaski.model.rope import RopeConfig

__all__ = ["latent_rope", "read_latent"]

_EPS = 1e-6  # of the norms of latents, whatever that of the other norms


def read_latent(file: GGUFFile, config: DecoderConfig) -> LatentConfig:
    """Return the sizes of latent attention.

    Raises UnsupportedError for files of older converters, which have one matrix for keys and values, and
    ModelError for sizes that do not fit.
    """
    prefix = f"{file.architecture}.attention"
    if f"{prefix}.key_length_mla" not in file.metadata:
        raise UnsupportedError(
            f"{file.path}: {prefix}.key_length_mla is missing: an older converter wrote this file with "
            "attn_kv_b, which is not supported; convert the checkpoint again, or download a newer file"
        )
    rank, key = (file.get(f"{prefix}.{name}", int) for name in ("kv_lora_rank", "key_length_mla"))
    turned, yarn = config.rope.dims, config.rope.yarn
    if rank + turned != config.head_size or rank != config.value_size or key <= turned:
        raise ModelError(
            f"{file.path}: {prefix}.key_length is {config.head_size}, value_length {config.value_size} and "
            f"key_length_mla {key}, which do not fit kv_lora_rank {rank} and {turned} rotated elements"
        )
    magnitude = yarn.magnitude(_multiplier(file)) if yarn is not None else 1.0
    return LatentConfig(
        size=config.hidden_size,
        heads=config.num_heads,
        rank=rank,
        query_rank=file.get(f"{prefix}.q_lora_rank", int, 0),
        rope=turned,
        plain=key - turned,
        value=file.get(f"{prefix}.value_length_mla", int),
        scale=key**-0.5 * magnitude**2,
        eps=_EPS,
    )


def latent_rope(file: GGUFFile, rope: RopeConfig) -> RopeConfig:
    """Return the rope; where YaRN has a log multiplier, the factor of scores replaces its magnitude."""
    is_in_scale = rope.yarn is not None and _multiplier(file)
    return replace(rope, magnitude=rope.attn_factor) if is_in_scale else rope


def _multiplier(file: GGUFFile) -> float:
    # The converter of llama.cpp multiplies it by YaRN's 0.1 for these architectures only.
    return file.get(f"{file.architecture}.rope.scaling.yarn_log_multiplier", float, 0.0) / 0.1
