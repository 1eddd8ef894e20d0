"""Mixtral (Jiang et al. 2024): Llama with experts; each expert has separate matrices."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.families import llama
from chaski.convert.family import Family, Row, attention, biases, embeddings, in_layer, llama3_factors, norm
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned

_MATRICES = {"gate": "w1", "up": "w3", "down": "w2"}


def metadata(config: Config) -> Metadata:
    return llama.metadata(config) | {
        "expert_count": config.count("num_local_experts"),
        "expert_used_count": config.get("num_experts_per_tok", int, 2),
    }


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from embeddings(config, names)
    yield from llama3_factors(config)
    count, hidden = config.count("num_local_experts"), config.get("hidden_size", int)
    rows = [
        norm(config, "attn_norm", "input_layernorm"),
        *attention(config, rotated=True, biases=biases(config)),
        norm(config, "ffn_norm", "post_attention_layernorm"),
        Row("ffn_gate_inp", "block_sparse_moe.gate", (count, hidden)),
    ]
    size = config.get("intermediate_size", int)
    for layer in range(config.count("num_hidden_layers")):
        yield from in_layer(layer, rows)
        for name, source in _MATRICES.items():
            shape = (hidden, size) if name == "down" else (size, hidden)
            experts = f"layers.{layer}.block_sparse_moe.experts"
            sources = tuple(f"{experts}.{index}.{source}.weight" for index in range(count))
            yield Mapped(f"blk.{layer}.ffn_{name}_exps.weight", (count, *shape), sources, shape)


FAMILY = Family("llama", metadata, tensors)
CHECKPOINTS = ("MixtralForCausalLM", "MixtralModel")
