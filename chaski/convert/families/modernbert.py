"""ModernBERT (Warner et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, in_layer
from chaski.convert.labels import classifier, is_classifier, label_metadata
from chaski.convert.metadata import Metadata, rope
from chaski.convert.pooling import read_pooling
from chaski.convert.tensors import Mapped, Planned
from chaski.errors import UnsupportedError

_PERIOD = 3
_FIRST = 2  # as a kind of pooling
_THETA = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}
_OLD_THETA = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def metadata(config: Config) -> Metadata:
    config.expect("hidden_activation", "gelu", "silu")
    for key in ("attention_bias", "mlp_bias", "norm_bias"):
        config.expect(key, False)
    heads = config.get("num_attention_heads", int)
    entries: Metadata = {
        "block_count": config.get("num_hidden_layers", int),
        "context_length": config.get("max_position_embeddings", int),
        "embedding_length": config.get("hidden_size", int),
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": heads,
        # llama.cpp reads the first, and its converter writes the second.
        "attention.layer_norm_epsilon": config.get("norm_eps", float, 1e-5),
        "attention.layer_norm_rms_epsilon": config.get("norm_eps", float, 1e-5),
        "attention.causal": False,
        "attention.sliding_window": config.get("local_attention", int),
        "hidden_activation": config.get("hidden_activation", str, "gelu"),
        **(_ranking(config) if is_classifier(config) else {"pooling_type": read_pooling(config)}),
        "rope.freq_base": _theta(config, "full_attention"),
        "rope.freq_base_swa": _theta(config, "sliding_attention"),
        "rope.scaling.type": "none",
        "vocab_size": config.get("vocab_size", int),
    }
    period = _period(config)
    return entries if period is None else entries | {"attention.sliding_window_pattern": period}


def _ranking(config: Config) -> Metadata:
    config.expect("classifier_pooling", "cls")
    config.expect("classifier_activation", "gelu")
    config.expect("classifier_bias", False)
    return label_metadata(config) | {"classifier.pooling_type": _FIRST}


def _theta(config: Config, layer_type: str) -> float:
    settings = rope(config, layer_type)
    if settings.get("rope_type", str, "default") != "default":
        raise UnsupportedError(
            f"{config.path}: only plain rotary embeddings can be converted for modern-bert"
        )
    old = config.get(_OLD_THETA[layer_type], float, _THETA[layer_type])
    return settings.get("rope_theta", float, old)


def _period(config: Config) -> int | None:
    """The number of layers of which the first sees everything; None for the usual one."""
    period = config.get("global_attn_every_n_layers", int, None)
    count = config.count("num_hidden_layers")
    if "layer_types" in config:
        names = ["sliding_attention" if i % (period or _PERIOD) else "full_attention" for i in range(count)]
        config.expect("layer_types", names)
    return period


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden, size = config.get("hidden_size", int), config.get("intermediate_size", int)
    table = ("embeddings.tok_embeddings.weight",)
    yield Mapped("token_embd.weight", (config.get("vocab_size", int), hidden), table)
    yield Mapped("token_embd_norm.weight", (hidden,), ("embeddings.norm.weight",))
    yield Mapped("output_norm.weight", (hidden,), ("final_norm.weight",))
    rows = [
        Row("attn_norm", "attn_norm", (hidden,)),
        Row("attn_qkv", "attn.Wqkv", (3 * hidden, hidden)),
        Row("attn_output", "attn.Wo", (hidden, hidden)),
        Row("ffn_norm", "mlp_norm", (hidden,)),
        Row("ffn_up", "mlp.Wi", (2 * size, hidden)),
        Row("ffn_down", "mlp.Wo", (hidden, size)),
    ]
    for number in range(config.count("num_hidden_layers")):
        yield from in_layer(number, rows if number else rows[1:])
    if is_classifier(config):
        yield Mapped("cls.norm.weight", (hidden,), ("head.norm.weight",))
        yield from classifier(config, "head.dense", "classifier", is_dense_biased=False)


FAMILY = Family(
    "modern-bert",
    metadata,
    tensors,
    unused=(r"head\..*", r"decoder\..*"),
    pre_tokenizers={"gpt-2": "modern-bert", "mpt": "modern-bert"},
    embeds=True,
)
