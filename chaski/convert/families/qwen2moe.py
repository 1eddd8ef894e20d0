"""Qwen 1.5 and 2 with experts (Yang et al. 2024). Every token passes through one shared, gated expert."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import qwen2, qwen3moe
from chaski.convert.family import Family, Row, embeddings, feed_forward, in_layers
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Planned


def metadata(config: Config) -> Metadata:
    config.expect("norm_topk_prob", False)
    config.expect("decoder_sparse_step", 1)
    config.expect("mlp_only_layers", [])
    config.expect("qkv_bias", True)
    return qwen2.metadata(config) | {
        "expert_count": qwen3moe.num_experts(config),
        "expert_used_count": config.get("num_experts_per_tok", int),
        "expert_feed_forward_length": config.get("moe_intermediate_size", int),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size", int),
    }


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    hidden, shared = config.get("hidden_size", int), config.get("shared_expert_intermediate_size", int)
    rows = [
        *qwen2.biased_attention(config),
        Row("ffn_gate_inp", "mlp.gate", (qwen3moe.num_experts(config), hidden)),
        Row("ffn_gate_inp_shexp", "mlp.shared_expert_gate", (1, hidden)),
        *feed_forward(config, shared, "mlp.shared_expert", "_shexp"),
    ]
    yield from in_layers(config, rows)
    for layer in range(config.count("num_hidden_layers")):
        yield from qwen3moe.experts(config, layer)


FAMILY = Family("qwen2moe", metadata, tensors)
CHECKPOINTS = ("Qwen2MoeForCausalLM",)
