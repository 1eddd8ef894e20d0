"""PLaMo 13B (Preferred Networks 2023), whose query heads take turns with the key/value heads."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.derived import Special, Specials, derived_family
from chaski.convert.metadata import Metadata

_CONTEXT = 4096
_SHARING = 8  # query heads of a key/value head


def metadata(config: Config) -> Metadata:
    heads = config.get("num_attention_heads", int)
    return {
        "block_count": config.count("num_hidden_layers"),
        "context_length": _CONTEXT,
        "embedding_length": config.get("hidden_size", int),
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": heads,
        "attention.head_count_kv": heads // config.get("n_shared_head", int, _SHARING),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps", float),
    }


def special(config: Config) -> Specials:
    heads, sharing = config.get("num_attention_heads", int), config.get("n_shared_head", int, _SHARING)

    def of_queries(values: NDArray[Any]) -> NDArray[Any]:
        """Put the query heads of each key/value head in sequence; query head i has number i mod n."""
        return values.reshape(sharing, heads // sharing, -1, values.shape[-1]).swapaxes(0, 1)

    def of_output(values: NDArray[Any]) -> NDArray[Any]:
        turned = values.reshape(len(values), sharing, heads // sharing, -1).swapaxes(1, 2)
        return turned.reshape(values.shape)

    return {"attn_q": Special(arrange=of_queries), "attn_output": Special(arrange=of_output)}


FAMILY = derived_family(
    "plamo", metadata, special, unused=(r"layers\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",)
)
CHECKPOINTS = ("PlamoForCausalLM",)
