"""GPT-NeoX (Black et al. 2022), whose rows of queries, keys and values alternate by heads."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.convert.config import Config
from chaski.convert.derived import Special, derived_family
from chaski.convert.family import heads_apart
from chaski.convert.metadata import Metadata, rope


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "gelu")
    hidden, heads = config.get("hidden_size", int), config.get("num_attention_heads", int)
    settings = rope(config)
    settings.expect("rope_type", "default")
    share = settings.get("partial_rotary_factor", float, config.get("rotary_pct", float, 1.0))
    base = settings.get("rope_theta", float, config.get("rotary_emb_base", float, 10000.0))
    return {
        "block_count": config.count("num_hidden_layers"),
        "context_length": config.get("max_position_embeddings", int),
        "embedding_length": hidden,
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": heads,
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", float),
        "rope.dimension_count": int(share * (hidden // heads)),
        "rope.freq_base": base,
        "use_parallel_residual": config.get("use_parallel_residual", bool, True),
    }


def special(config: Config) -> Mapping[str, Special]:
    return {"attn_qkv": Special(arrange=heads_apart(config.get("num_attention_heads", int)))}


FAMILY = derived_family("gptneox", metadata, special)
CHECKPOINTS = ("GPTNeoXForCausalLM",)
