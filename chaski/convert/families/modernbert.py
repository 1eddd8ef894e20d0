"""ModernBERT (Warner et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec.structs import replace

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
    heads = config.get("num_attention_heads", int)
    entries: Metadata = {
        "block_count": config.get("num_hidden_layers", int),
        "context_length": config.get("max_position_embeddings", int),
        "embedding_length": config.get("hidden_size", int),
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": heads,
        # llama.cpp reads the first key, but its converter writes the second one.
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
    """Return the period of layers with full attention; None for the usual one."""
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
    yield from _norm(config, "token_embd_norm", "embeddings.norm")
    yield from _norm(config, "output_norm", "final_norm")
    rows = [
        *_biased(config, "attention_bias", Row("attn_qkv", "attn.Wqkv", (3 * hidden, hidden))),
        *_biased(config, "attention_bias", Row("attn_output", "attn.Wo", (hidden, hidden))),
        *_biased(config, "norm_bias", Row("ffn_norm", "mlp_norm", (hidden,))),
        *_biased(config, "mlp_bias", Row("ffn_up", "mlp.Wi", (2 * size, hidden))),
        *_biased(config, "mlp_bias", Row("ffn_down", "mlp.Wo", (hidden, size))),
    ]
    first = list(_biased(config, "norm_bias", Row("attn_norm", "attn_norm", (hidden,))))
    for number in range(config.count("num_hidden_layers")):
        yield from in_layer(number, [*first, *rows] if number else rows)
    if is_classifier(config):
        yield from _norm(config, "cls.norm", "head.norm")
        is_biased = config.get("classifier_bias", bool, False)
        yield from classifier(config, "head.dense", "classifier", is_dense_biased=is_biased)


def _norm(config: Config, name: str, source: str) -> Iterator[Planned]:
    size = (config.get("hidden_size", int),)
    for kind in ("weight", "bias") if config.get("norm_bias", bool, False) else ("weight",):
        yield Mapped(f"{name}.{kind}", size, (f"{source}.{kind}",))


def _biased(config: Config, switch: str, row: Row) -> Iterator[Row]:
    """Yield a row, and its bias if the setting `switch` enables biases."""
    yield row
    if config.get(switch, bool, False):
        yield replace(row, shape=row.shape[:1], suffix=".bias")


FAMILY = Family(
    "modern-bert",
    metadata,
    tensors,
    unused=(r"head\..*", r"decoder\..*"),
    pre_tokenizers={"gpt-2": "modern-bert", "mpt": "modern-bert"},
    embeds=True,
)
CHECKPOINTS = ("ModernBertForMaskedLM", "ModernBertForSequenceClassification", "ModernBertModel")
