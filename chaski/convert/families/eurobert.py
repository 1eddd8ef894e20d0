"""EuroBERT (Boizard et al. 2025): Llama's layers with bidirectional attention."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, attention, feed_forward, in_layers, norm
from chaski.convert.metadata import Metadata, common_metadata
from chaski.convert.pooling import read_pooling
from chaski.convert.tensors import Mapped, Planned


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    for key in ("attention_bias", "mlp_bias"):
        config.expect(key, False)
    entries = common_metadata(config) | {"attention.causal": False, "pooling_type": read_pooling(config)}
    return {"rope.scaling.type": "none"} | entries


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden = config.get("hidden_size", int)
    yield Mapped("token_embd.weight", (config.get("vocab_size", int), hidden), ("embed_tokens.weight",))
    yield Mapped("output_norm.weight", (hidden,), ("norm.weight",))
    rows = [norm(config, "attn_norm", "input_layernorm"), *attention(config)]
    rows += [norm(config, "ffn_norm", "post_attention_layernorm")]
    yield from in_layers(config, [*rows, *feed_forward(config, config.get("intermediate_size", int))])


FAMILY = Family("eurobert", metadata, tensors, unused=(r"lm_head\..*",), embeds=True)
CHECKPOINTS = ("EuroBertForMaskedLM", "EuroBertModel", "JinaEmbeddingsV5Model")
