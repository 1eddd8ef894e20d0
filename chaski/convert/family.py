"""The description of a model family, and the tensors that most families have in common.

Checkpoint names are plain names, without wrapper prefixes such as `model.language_model.`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.metadata import Metadata, head_size, llama3_rope_factors
from chaski.convert.tensors import Arrange, Constant, Mapped, Planned, TensorShape, as_it_is
from chaski.formats.safetensors import SafeTensor

__all__ = [
    "VISION_TENSORS",
    "Family",
    "Row",
    "VisionFamily",
    "attention",
    "biases",
    "embeddings",
    "feed_forward",
    "heads_apart",
    "in_layer",
    "in_layers",
    "llama3_factors",
    "norm",
    "rotation",
]


# The encoder of images and its projection to the text model. GGUF stores them in a separate file.
VISION_TENSORS = (r"vision_(tower|model)\..*", r"(multi_modal_projector|mlp1)\..*")


class VisionFamily(Struct, frozen=True):
    """The conversion of an architecture's image encoder to GGUF.

    It is part of the text model's file, or a separate file as llama.cpp reads it: a projector.
    metadata: for the first, keys without the architecture before them. projector: the same for the second.
    tensors: under llama.cpp's names. names: Ollama's parts of names for llama.cpp's, for the first.
    architecture: what the first is called, where that is not the text model's name.
    of: the family for the tensors of a checkpoint, where these alone tell the parts of the encoder.
    projector_tensors: for the second, where they are others.
    unused: patterns of names of the checkpoint that it has no use for.
    """

    metadata: Callable[[Config], Metadata]
    projector: Callable[[Config], Metadata]
    tensors: Callable[[Config], Iterator[Mapped]]
    names: Mapping[str, str]
    projector_tensors: Callable[[Config], Iterator[Planned]] | None = None
    unused: tuple[str, ...] = ()
    architecture: str = ""
    of: Callable[[Mapping[str, SafeTensor]], VisionFamily] | None = None

    def in_projector(self, config: Config) -> Iterator[Planned]:
        """Return the tensors of the projector file."""
        return (self.projector_tensors or self.tensors)(config)

    def in_text_file(self, config: Config) -> Iterator[Mapped]:
        """Yield the tensors under their names in the text model's file."""
        for planned in self.tensors(config):
            name = f".{planned.name}."
            for part, other in self.names.items():
                name = name.replace(f".{part}.", f".{other}.")
            yield replace(planned, name=name[1:-1])


class Family(Struct, frozen=True):
    """The conversion of checkpoints of one architecture to GGUF.

    architecture: GGUF's name of it. metadata: from its configuration, keys without the architecture before
    them. tensors: all that the file shall have, given the names that the checkpoint has.
    unused: patterns of names of the checkpoint outside the text model.
    vision: its encoder of images, for checkpoints that configure one.
    defaults: settings that its configurations may leave out.
    synonyms: other names of settings in its configurations, with the usual names.
    num_extra_tokens: embeddings after those of the vocabulary, for tokens without logits.
    embeds: it makes embeddings, so dense layers of sentence-transformers are converted too.
    has_merges: its readers want the merges of a SentencePiece vocabulary, not the scores.
    pre_tokenizers: what this architecture calls them, where that is not the usual name of the same rule.
    templates: others than the chat template that its models are asked by, by name.
    observed: settings that follow from the names of a checkpoint's tensors. They override its configuration.
    needs_target: it is a draft, with the tokenizer of the model that it proposes for, whose configuration is
    the part `target` of its own.
    roles: tokens that have a role in the model regardless of the tokenizer, by GGUF's name of the role.
    tasks: names of tasks with adapters in the checkpoint; one of them can be merged.
    ineffective: patterns of names that count as absent where all their elements are zero.
    left_out: patterns of names of the blocks for multi-token prediction, which the file does not get.
    measured: from the tensors of a checkpoint, keys that are no architecture's.
    """

    architecture: str
    metadata: Callable[[Config], Metadata]
    tensors: Callable[[Config, Set[str]], Iterator[Planned]]
    unused: tuple[str, ...] = ()
    vision: VisionFamily | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    synonyms: Mapping[str, str] = field(default_factory=dict)
    num_extra_tokens: int = 0
    embeds: bool = False
    has_merges: bool = False
    pre_tokenizers: Mapping[str, str] = field(default_factory=dict)
    templates: Callable[[Config], Mapping[str, str]] = lambda config: {}
    observed: Callable[[Set[str]], Mapping[str, Any]] = lambda names: {}
    needs_target: bool = False
    roles: Callable[[Config], Mapping[str, int]] = lambda config: {}
    tasks: Callable[[Config], Sequence[str]] = lambda config: ()
    ineffective: tuple[str, ...] = ()
    left_out: Callable[[Config], Sequence[str]] = lambda config: ()
    measured: Callable[[Config, Mapping[str, SafeTensor]], Metadata] = lambda config, tensors: {}


class Row(Struct, frozen=True):
    """A tensor of each layer.

    name: its GGUF name within the layer, without suffix. source: its checkpoint name, likewise.
    shape, arrange, shift, source_shape: as in `Mapped`.
    """

    name: str
    source: str
    shape: TensorShape
    suffix: str = ".weight"
    arrange: Arrange = as_it_is
    shift: float = 0.0
    source_shape: TensorShape | None = None


def in_layers(config: Config, rows: Iterable[Row]) -> Iterator[Planned]:
    """Yield the tensors of `rows` for every layer."""
    rows = list(rows)
    for layer in range(config.count("num_hidden_layers")):
        yield from in_layer(layer, rows)


def in_layer(layer: int, rows: Iterable[Row], prefix: str = "layers", block: str = "blk") -> Iterator[Mapped]:
    """Yield the tensors of `rows` for one layer, named `prefix` in the checkpoint and `block` in GGUF."""
    for row in rows:
        names = (f"{prefix}.{layer}.{row.source}{row.suffix}",)
        name = f"{block}.{layer}.{row.name}{row.suffix}"
        yield Mapped(name, row.shape, names, row.source_shape, row.arrange, row.shift)


def embeddings(
    config: Config,
    names: Set[str],
    last_norm: str = "norm",
    gguf_norm: str = "output_norm",
    shift: float = 0.0,
) -> Iterator[Planned]:
    """Yield the embedding, the last norm, and the output matrix unless it is tied to the embedding."""
    hidden, vocab_size = config.get("hidden_size", int), config.get("vocab_size", int)
    yield Mapped("token_embd.weight", (vocab_size, hidden), ("embed_tokens.weight",))
    yield Mapped(f"{gguf_norm}.weight", (hidden,), (f"{last_norm}.weight",), shift=shift)
    is_tied = config.get("tie_word_embeddings", bool, False) or _is_base(config)
    if "lm_head.weight" in names or not is_tied:
        yield Mapped("output.weight", (vocab_size, hidden), ("lm_head.weight",))


def _is_base(config: Config) -> bool:
    """Return whether the checkpoint is a base model, without an output matrix."""
    return any(str(name).endswith("Model") for name in config.list("architectures", str))


def llama3_factors(config: Config) -> Iterator[Planned]:
    """Yield the divisors of rotary frequencies, if the rope is Llama 3's."""
    factors = llama3_rope_factors(config)
    if factors is not None:
        yield Constant("rope_freqs.weight", factors)


def norm(config: Config, name: str, source: str, shift: float = 0.0) -> Row:
    """Return a norm over the whole hidden state."""
    return Row(name, source, (config.get("hidden_size", int),), shift=shift)


def attention(
    config: Config,
    *,
    rotated: bool = False,
    biases: str = "",
    part: str = "self_attn",
    output: str = "o_proj",
) -> Iterator[Row]:
    """Yield the query, key, value and output matrices.

    rotated: arrange queries and keys in the order of GGUF's `llama`, see `rotation`.
    biases: the letters of qkvo whose matrices have a bias.
    """
    hidden, size = config.get("hidden_size", int), head_size(config)
    heads = config.get("num_attention_heads", int)
    kv_heads = config.get("num_key_value_heads", int, heads)
    for name, source, rows, columns, turned in (
        ("attn_q", "q_proj", heads * size, hidden, heads),
        ("attn_k", "k_proj", kv_heads * size, hidden, kv_heads),
        ("attn_v", "v_proj", kv_heads * size, hidden, 0),
        ("attn_output", output, hidden, heads * size, 0),
    ):
        arrange = rotation(turned) if rotated and turned else as_it_is
        yield Row(name, f"{part}.{source}", (rows, columns), arrange=arrange)
        if name[5] in biases:
            yield Row(name, f"{part}.{source}", (rows,), ".bias", arrange)


def biases(config: Config) -> str:
    """Return `biases` of `attention` for models with one setting for all biases."""
    return "qkvo" if config.get("attention_bias", bool, False) else ""


def rotation(num_heads: int) -> Arrange:
    """Return the arrangement of a query or key matrix's rows for GGUF's `llama`.

    Hugging Face rotates element i of a head together with element i + size / 2, but `llama` rotates adjacent
    elements. Elements 0 and size / 2 become adjacent, then 1 and size / 2 + 1, and so on.
    """

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(num_heads, 2, -1, *values.shape[1:]).swapaxes(1, 2)

    return arrange


def heads_apart(num_heads: int) -> Arrange:
    """Return the arrangement of rows that alternate: query, key and value of head 0, of head 1, and so on."""

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        return values.reshape(num_heads, 3, -1, *values.shape[1:]).swapaxes(0, 1)

    return arrange


def feed_forward(
    config: Config, size: int, part: str = "mlp", suffix: str = "", bias: bool = False
) -> Iterator[Row]:
    """The gated network of that inner size; `suffix`: end of its names in GGUF."""
    hidden = config.get("hidden_size", int)
    for name, rows, columns in (("gate", size, hidden), ("up", size, hidden), ("down", hidden, size)):
        yield Row(f"ffn_{name}{suffix}", f"{part}.{name}_proj", (rows, columns))
        if bias:
            yield Row(f"ffn_{name}{suffix}", f"{part}.{name}_proj", (rows,), ".bias")
