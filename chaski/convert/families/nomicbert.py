"""Nomic Embed (Nussbaum et al. 2024). Its release names settings as GPT-2 does, transformers as BERT does."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config, read_json
from chaski.convert.families.bert import Names, encoder_metadata, encoder_tensors
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Planned
from chaski.errors import UnsupportedError

__all__ = ["FAMILY", "NAMES", "check", "common_metadata", "settings"]

_OLD = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "layer_norm_eps": "layer_norm_epsilon",
}
NAMES = Names(
    "encoder.layers",
    {
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "attn_output_norm": "norm1",
        "ffn_up": "mlp.fc11",
        "ffn_gate": "mlp.fc12",
        "ffn_down": "mlp.fc2",
        "layer_output_norm": "norm2",
    },
    token_embd_norm="emb_ln",
    unbiased=("attn_qkv", "attn_output", "ffn_up", "ffn_gate", "ffn_down"),
)


def settings(config: Config) -> Config:
    """Return the settings under the names of transformers."""
    old = {name: config.values.get(other) for name, other in _OLD.items()}
    return config.over(Config(config.path, {name: value for name, value in old.items() if value is not None}))


def check(config: Config, activation: str, *, biased: bool) -> None:
    """Raise UnsupportedError for a checkpoint that GGUF cannot express."""
    config.expect("activation_function", activation)
    config.expect("rotary_emb_fraction", 1.0, 1)
    for key in ("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias"):
        config.expect(key, biased)
    for key in ("causal", "prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"):
        config.expect(key, False)
    if rope(config).get("rope_type", str, "default") != "default":
        raise UnsupportedError(f"{config.path}: only plain rotary embeddings can be converted for nomic-bert")


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "silu")
    config.expect("num_experts", 0)
    check(config, "swiglu", biased=False)
    return common_metadata(config)


def common_metadata(config: Config) -> Metadata:
    """Return the keys that both generations share."""
    c = settings(config)
    base = rope(c).get("rope_theta", float, c.get("rotary_emb_base", float, 10000.0))
    return encoder_metadata(c) | {"context_length": _context_length(c), "rope.freq_base": base}


def _context_length(config: Config) -> int:
    """Return the longest context in tokens. The first release allows more, but with another rope."""
    if "max_position_embeddings" in config:
        return config.get("max_position_embeddings", int)
    length = config.get("n_positions", int)
    length = min(length, config.get("max_trained_positions", int, length))
    path = config.path.parent / "sentence_bert_config.json"
    return min(length, Config(path, read_json(path)).get("max_seq_length", int, length))


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    yield from encoder_tensors(settings(config), names, NAMES)


FAMILY = Family("nomic-bert", metadata, tensors, embeds=True)
CHECKPOINTS = ("NomicBertModel",)
