"""NeoBERT (Le Breton et al. 2025)."""

from __future__ import annotations

from collections.abc import Iterator, Set

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, in_layer
from chaski.convert.labels import classifier, is_classifier, label_metadata
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned

_FIRST = 2  # as a kind of pooling
_MULTIPLE = 8  # of the feed-forward size


def metadata(config: Config) -> Metadata:
    return {
        "block_count": config.get("num_hidden_layers", int),
        "context_length": config.get("max_length", int),
        "embedding_length": config.get("hidden_size", int),
        "feed_forward_length": _ffn_size(config),
        "attention.head_count": config.get("num_attention_heads", int),
        "attention.layer_norm_rms_epsilon": config.get("norm_eps", float, 1e-6),
        "attention.causal": False,
        "rope.freq_base": 10000.0,
        "rope.scaling.type": "none",
        **(label_metadata(config) if is_classifier(config) else {"pooling_type": _FIRST}),
    }


def _ffn_size(config: Config) -> int:
    """Return two thirds of the configured size, rounded up."""
    return -(-(2 * config.get("intermediate_size", int) // 3) // _MULTIPLE) * _MULTIPLE


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden, size = config.get("hidden_size", int), _ffn_size(config)
    yield Mapped("token_embd.weight", (config.get("vocab_size", int), hidden), ("encoder.weight",))
    yield Mapped("enc.output_norm.weight", (hidden,), ("layer_norm.weight",))
    rows = [
        Row("attn_norm", "attention_norm", (hidden,)),
        Row("attn_qkv", "qkv", (3 * hidden, hidden)),
        Row("attn_output", "wo", (hidden, hidden)),
        Row("ffn_norm", "ffn_norm", (hidden,)),
        Row("ffn_up", "ffn.w12", (2 * size, hidden)),
        Row("ffn_down", "ffn.w3", (hidden, size)),
    ]
    for number in range(config.count("num_hidden_layers")):
        yield from in_layer(number, rows, "transformer_encoder")
    if is_classifier(config):
        yield from classifier(config, "dense", "classifier")


FAMILY = Family("neo-bert", metadata, tensors, unused=(r"decoder\..*",), embeds=True)
CHECKPOINTS = ("NeoBERT", "NeoBERTForSequenceClassification", "NeoBERTLMHead")
