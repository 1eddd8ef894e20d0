"""Metadata and tensors of latent attention, from common configuration keys."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials
from chaski.convert.metadata import Metadata, rope, yarn_magnitude
from chaski.convert.tensors import transposed

__all__ = ["joined_heads", "latent_metadata", "latent_rope", "split_heads"]

_MATRIX = ("self_attn.kv_b_proj",)


def latent_metadata(config: Config) -> Metadata:
    """Return the keys of latent attention, which replace those of usual attention."""
    rank, turned = config.get("kv_lora_rank", int), config.get("qk_rope_head_dim", int)
    entries: Metadata = {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + turned,
        "attention.value_length": rank,
        "attention.key_length_mla": config.get("qk_nope_head_dim", int) + turned,
        "attention.value_length_mla": config.get("v_head_dim", int),
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": turned,
    }
    if config.get("q_lora_rank", int, None) is not None:
        entries["attention.q_lora_rank"] = config.get("q_lora_rank", int)
    return entries


def latent_rope(config: Config) -> Metadata:
    """Return the key of the factor of scores, and that of keys and queries if it is not 1."""
    settings = rope(config)
    if "mscale_all_dim" not in settings:
        return {}
    below = settings.get("mscale_all_dim", float)
    entries: Metadata = {"rope.scaling.yarn_log_multiplier": 0.1 * below}
    if below and settings.get("rope_type", str, "default") == "yarn":
        factor, above = settings.get("factor", float), settings.get("mscale", float, 0.0)
        usual = (
            yarn_magnitude(factor, above) / yarn_magnitude(factor, below) if above else yarn_magnitude(factor)
        )
        own = settings.get("attention_factor", float, usual)
        entries |= {"rope.scaling.attn_factor": own} if own != 1.0 else {}
    return entries


def split_heads(config: Config) -> Specials:
    """Return how the matrix of keys and values is split: keys transposed, one matrix for each head."""
    heads, plain = config.get("num_attention_heads", int), config.get("qk_nope_head_dim", int)
    rows = plain + config.get("v_head_dim", int)

    def by_head(matrix: NDArray[Any]) -> NDArray[Any]:
        return matrix.reshape(heads, rows, -1)

    def source_shape(_: tuple[int, ...]) -> tuple[int, ...]:
        return heads * rows, config.get("kv_lora_rank", int)

    return {
        "attn_k_b": Special(
            sources=_MATRIX,
            is_stack=True,
            arrange=lambda matrix: transposed(by_head(matrix)[:, :plain]),
            source_shape=source_shape,
        ),
        "attn_v_b": Special(
            sources=_MATRIX,
            is_stack=True,
            arrange=lambda matrix: by_head(matrix)[:, plain:],
            source_shape=source_shape,
        ),
    }


def joined_heads(config: Config) -> Specials:
    """Return the source of the matrix of keys and values, for families whose files keep it whole."""
    return {"attn_kv_b": Special(sources=_MATRIX)}
