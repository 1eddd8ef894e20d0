"""BERT, RoBERTa and XLM-R: learned positions, norms after sums (Devlin et al. 2018; Liu et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from msgspec import Struct, field
from msgspec.structs import replace

from chaski.convert.config import Config
from chaski.convert.family import Family, Row, in_layer
from chaski.convert.labels import classifier, is_classifier, label_metadata
from chaski.convert.metadata import Metadata
from chaski.convert.pooling import read_pooling
from chaski.convert.tensors import Arrange, Mapped, Planned, as_it_is
from chaski.errors import ModelError

__all__ = [
    "FAMILY",
    "HEADS",
    "Names",
    "embedding_tensors",
    "encoder_metadata",
    "encoder_tensors",
    "layer_rows",
]

# Pre-training heads, and a layer for the first token in classification.
HEADS = (r"cls\..*", r"pooler\..*", r"lm_head\..*")


class Names(Struct, frozen=True):
    """A checkpoint's names for the tensors of a model like BERT.

    layers: prefix of a layer's number. parts: names of a layer's parts, by GGUF's names.
    token_embd, token_types, token_embd_norm: what GGUF calls so. unbiased: those of `parts` without a bias.
    arranged: the order that GGUF wants of some of `parts`. is_gated: ffn_up has the rows of gates, too.
    """

    layers: str
    parts: Mapping[str, str]
    token_embd: str = "embeddings.word_embeddings"
    token_types: str = "embeddings.token_type_embeddings"
    token_embd_norm: str = "embeddings.LayerNorm"
    unbiased: tuple[str, ...] = ()
    arranged: Mapping[str, Arrange] = field(default_factory=dict)
    is_gated: bool = False


_BERT = Names(
    "encoder.layer",
    {
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
)


def metadata(config: Config) -> Metadata:
    config.expect("hidden_act", "gelu")
    config.expect("position_embedding_type", "absolute")
    for key in ("is_decoder", "add_cross_attention"):
        config.expect(key, False)
    return encoder_metadata(config) | {"context_length": _positions(config)[1]}


def encoder_metadata(config: Config) -> Metadata:
    """Return the keys that all models like BERT have, except the context length."""
    return {
        "block_count": config.get("num_hidden_layers", int),
        "embedding_length": config.get("hidden_size", int),
        "feed_forward_length": config.get("intermediate_size", int),
        "attention.head_count": config.get("num_attention_heads", int),
        "attention.layer_norm_epsilon": config.get("layer_norm_eps", float),
        "attention.causal": False,
        **(label_metadata(config) if is_classifier(config) else {"pooling_type": read_pooling(config)}),
    }


def _positions(config: Config) -> tuple[int, int]:
    """Return the position of a text's first token and the number of positions from there.

    RoBERTa's positions begin after the position of padding.
    """
    kind = config.get("model_type", str, "bert")
    is_roberta = "roberta" in kind or kind == "camembert"
    first = 1 + config.get("pad_token_id", int, 1) if is_roberta else 0
    count = config.get("max_position_embeddings", int) - first
    if first < 0 or count < 1:
        raise ModelError(f"{config.path}: 'pad_token_id' leaves no positions for texts")
    return first, count


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    hidden = config.get("hidden_size", int)
    first, count = _positions(config)
    table = ("embeddings.position_embeddings.weight",)
    stored = first + count, hidden
    yield Mapped("position_embd.weight", (count, hidden), table, stored, lambda rows: rows[first:])
    yield from encoder_tensors(config, names, _BERT)
    if is_classifier(config):
        # RoBERTa has the pooler's layer next to the output.
        own = "classifier.out_proj.weight" in names
        yield from classifier(
            config, *(("classifier.dense", "classifier.out_proj") if own else ("pooler.dense", "classifier"))
        )


def encoder_tensors(config: Config, names: Set[str], found: Names) -> Iterator[Planned]:
    """Yield all tensors except the position tables."""
    yield from embedding_tensors(config, names, found)
    kinds = _kinds(names, found)
    for number in range(config.count("num_hidden_layers")):
        for mapped in in_layer(number, layer_rows(config, found), found.layers):
            module, kind = mapped.names[0].rsplit(".", 1)
            is_norm = "norm" in mapped.name
            yield replace(mapped, names=(f"{module}.{kinds[kind]}",)) if is_norm else mapped


def embedding_tensors(config: Config, names: Set[str], found: Names) -> Iterator[Planned]:
    """The embeddings of tokens and of their types, and the norm after them."""
    hidden = config.get("hidden_size", int)
    tokens, types = config.get("vocab_size", int), config.get("type_vocab_size", int, 2)
    yield Mapped("token_embd.weight", (tokens, hidden), (f"{found.token_embd}.weight",))
    yield Mapped("token_types.weight", (types, hidden), (f"{found.token_types}.weight",))
    for kind, source in _kinds(names, found).items():
        yield Mapped(f"token_embd_norm.{kind}", (hidden,), (f"{found.token_embd_norm}.{source}",))


def _kinds(names: Set[str], found: Names) -> Mapping[str, str]:
    """Return the names of a norm's two tensors, which the first releases call differently."""
    if f"{found.token_embd_norm}.gamma" in names:
        return {"weight": "gamma", "bias": "beta"}
    return {"weight": "weight", "bias": "bias"}


def layer_rows(config: Config, found: Names) -> Iterator[Row]:
    """Yield the tensors of a layer."""
    hidden, size = config.get("hidden_size", int), config.get("intermediate_size", int)
    rows = {"attn_qkv": 3 * hidden, "ffn_up": 2 * size if found.is_gated else size, "ffn_gate": size}
    for name, source in found.parts.items():
        count, is_norm = rows.get(name, hidden), "norm" in name
        columns = size if name == "ffn_down" else hidden
        arrange = found.arranged.get(name, as_it_is)
        yield Row(name, source, (count,) if is_norm else (count, columns), arrange=arrange)
        if name not in found.unbiased:
            yield Row(name, source, (count,), ".bias", arrange)


FAMILY = Family("bert", metadata, tensors, unused=HEADS, pre_tokenizers={"gpt-2": "roberta-bpe"}, embeds=True)
CHECKPOINTS = (
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "CamembertForMaskedLM",
    "CamembertModel",
    "RobertaForMaskedLM",
    "RobertaForSequenceClassification",
    "RobertaModel",
    "XLMRobertaForMaskedLM",
    "XLMRobertaForSequenceClassification",
    "XLMRobertaModel",
)
