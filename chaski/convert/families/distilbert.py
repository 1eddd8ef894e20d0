"""DistilBERT (Sanh et al. 2019): BERT without types of tokens, under other names."""

from __future__ import annotations

from collections.abc import Iterator, Set

from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.families import bert
from chaski.convert.labels import classifier, is_classifier
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped, Planned

_NAMES = bert.Names(
    "transformer.layer",
    {
        "attn_q": "attention.q_lin",
        "attn_k": "attention.k_lin",
        "attn_v": "attention.v_lin",
        "attn_output": "attention.out_lin",
        "attn_output_norm": "sa_layer_norm",
        "ffn_up": "ffn.lin1",
        "ffn_down": "ffn.lin2",
        "layer_output_norm": "output_layer_norm",
    },
)
_KEYS = {
    "dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
}
_EPSILON = 1e-12


def _as_bert(config: Config) -> Config:
    """Return the settings under BERT's names."""
    known = {new: config.values[old] for old, new in _KEYS.items() if old in config}
    return Config(config.path, {**known, "layer_norm_eps": _EPSILON}).over(config)


def metadata(config: Config) -> Metadata:
    config.expect("activation", "gelu")
    entries = bert.encoder_metadata(_as_bert(config))
    if is_classifier(config):
        entries["classifier.activation"] = "relu"
    return entries | {"context_length": config.get("max_position_embeddings", int)}


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    known = _as_bert(config)
    shape = known.get("max_position_embeddings", int), known.get("hidden_size", int)
    yield Mapped("position_embd.weight", shape, ("embeddings.position_embeddings.weight",))
    planned = bert.encoder_tensors(known, names, _NAMES)
    yield from (each for each in planned if each.name != "token_types.weight")
    if is_classifier(config):
        yield from classifier(known, "pre_classifier", "classifier")


FAMILY = replace(
    bert.FAMILY,
    metadata=metadata,
    tensors=tensors,
    unused=(r"vocab_.*", *bert.HEADS),
    defaults={"type_vocab_size": 1},
)
CHECKPOINTS = ("DistilBertForMaskedLM", "DistilBertForSequenceClassification", "DistilBertModel")
