"""OpenELM (Mehta et al. 2024), whose configuration has the sizes of each layer."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import TensorShape

_EPS = 1e-6
_MOST_LOST = 0.9  # of a size that is rounded down


def metadata(config: Config) -> Metadata:
    for key in ("normalize_qk_projections", "ffn_with_glu", "share_input_output_layers"):
        config.expect(key, True)
    config.expect("activation_fn_name", "swish")
    config.expect("normalization_layer_name", "rms_norm")
    size = config.get("head_dim", int)
    return {
        "block_count": config.count("num_transformer_layers"),
        "context_length": config.get("max_context_length", int),
        "embedding_length": config.get("model_dim", int),
        "feed_forward_length": [_multiple(config, factor) for factor in _factors(config)],
        "attention.head_count": config.list("num_query_heads", int),
        "attention.head_count_kv": config.list("num_kv_heads", int),
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": _EPS,
        "rope.freq_base": float(config.get("rope_freq_constant", float)),
        "rope.dimension_count": size,
    }


def _factors(config: Config) -> list[float]:
    factors: list[float] = config.list("ffn_multipliers", float)
    return factors


def _multiple(config: Config, factor: float) -> int:
    """Return the inner size of a layer: a multiple of a divisor near `factor` times the hidden size."""
    wanted, divisor = factor * config.get("model_dim", int), config.get("ffn_dim_divisor", int)
    size = max(divisor, int(wanted + divisor / 2) // divisor * divisor)
    return size + divisor if size < _MOST_LOST * wanted else size


def special(config: Config) -> Specials:
    return {
        "token_embd": Special(sources=("token_embeddings",)),
        "attn_norm": Special(sources=("attn_norm",)),
        "attn_qkv": Special(sources=("attn.qkv_proj",)),
        "attn_q_norm": Special(sources=("attn.q_norm",)),
        "attn_k_norm": Special(sources=("attn.k_norm",)),
        "ffn_norm": Special(sources=("ffn_norm",)),
        "ffn_gate": _half(0),
        "ffn_up": _half(1),
        "ffn_down": Special(sources=("ffn.proj_2",)),
    }


def _half(index: int) -> Special:
    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        count = len(values) // 2
        return values[index * count : (index + 1) * count]

    return Special(sources=("ffn.proj_1",), arrange=arrange, source_shape=_both)


def _both(shape: TensorShape) -> TensorShape:
    return 2 * shape[0], *shape[1:]


FAMILY = derived_family(
    "openelm", metadata, special, synonyms={"share_input_output_layers": "tie_word_embeddings"}
)
CHECKPOINTS = ("OpenELMForCausalLM",)
