"""Nomic Embed (Nussbaum et al. 2024): its own release has GPT-2's names of settings, transformers BERT's."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, in_layer
from chaski.convert.metadata import Metadata, rope
from chaski.convert.pooling import read_pooling
from chaski.convert.tensors import Mapped, Planned
from chaski.errors import UnsupportedError

_OLD = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "layer_norm_eps": "layer_norm_epsilon",
}


def _settings(config: Config) -> Config:
    """Return the settings under the names of transformers."""
    old = {name: config.values.get(other) for name, other in _OLD.items()}
    return config.over(Config(config.path, {name: value for name, value in old.items() if value is not None}))


def _check(config: Config) -> None:
    """Refuse a checkpoint that GGUF's `nomic-bert` cannot express."""
    config.expect("hidden_act", "silu")
    config.expect("activation_function", "swiglu")
    config.expect("rotary_emb_fraction", 1.0, 1)
    config.expect("num_experts", 0)
    config.expect("moe_every_n_layers", 0)
    for key in ("mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias"):
        config.expect(key, False)
    for key in ("causal", "prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"):
        config.expect(key, False)
    if rope(config).get("rope_type", str, "default") != "default":
        raise UnsupportedError(f"{config.path}: only plain rotary embeddings can be converted for nomic-bert")


def metadata(config: Config) -> Metadata:
    _check(config)
    c = _settings(config)
    base = rope(c).get("rope_theta", float, c.get("rotary_emb_base", float, 10000.0))
    return {
        "block_count": c.get("num_hidden_layers", int),
        "context_length": _context_length(c),
        "embedding_length": c.get("hidden_size", int),
        "feed_forward_length": c.get("intermediate_size", int),
        "attention.head_count": c.get("num_attention_heads", int),
        "attention.layer_norm_epsilon": c.get("layer_norm_eps", float),
        "attention.causal": False,
        "pooling_type": read_pooling(config),
        "rope.freq_base": base,
    }


def _context_length(config: Config) -> int:
    """Return the trained context; the release allows more, with another rope."""
    if "max_position_embeddings" in config:
        return config.get("max_position_embeddings", int)
    length = config.get("n_positions", int)
    return min(length, config.get("max_trained_positions", int, length))


def layer(config: Config) -> Iterator[Row]:
    hidden, size = config.get("hidden_size", int), config.get("intermediate_size", int)
    for name, source, shape in (
        ("attn_qkv", "attn.Wqkv", (3 * hidden, hidden)),
        ("attn_output", "attn.out_proj", (hidden, hidden)),
        ("attn_output_norm", "norm1", (hidden,)),
        ("ffn_up", "mlp.fc11", (size, hidden)),
        ("ffn_gate", "mlp.fc12", (size, hidden)),
        ("ffn_down", "mlp.fc2", (hidden, size)),
        ("layer_output_norm", "norm2", (hidden,)),
    ):
        yield Row(name, source, shape)
        if len(shape) == 1:
            yield Row(name, source, shape, ".bias")


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    c = _settings(config)
    hidden = c.get("hidden_size", int)
    for name, source, count in (
        ("token_embd", "word_embeddings", c.get("vocab_size", int)),
        ("token_types", "token_type_embeddings", c.get("type_vocab_size", int, 2)),
    ):
        yield Mapped(f"{name}.weight", (count, hidden), (f"embeddings.{source}.weight",))
    for kind in ("weight", "bias"):
        yield Mapped(f"token_embd_norm.{kind}", (hidden,), (f"emb_ln.{kind}",))
    for number in range(c.count("num_hidden_layers")):
        yield from in_layer(number, layer(c), "encoder.layers")


FAMILY = Family("nomic-bert", metadata, tensors)
