"""Qwen 3 (Qwen Team 2025): norms on the queries and keys of each head, no biases.

Its rerankers answer yes or no. Instead of all logits, GGUF stores the output rows of these two tokens.
Checkpoints for sequence classification get the same question, and GGUF stores the matrix of their scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config, read_json
from chaski.convert.families import qwen2
from chaski.convert.family import Family, Row, attention, biases, embeddings, feed_forward, in_layers, norm
from chaski.convert.labels import is_classifier, label_metadata, scores
from chaski.convert.metadata import Metadata, head_size
from chaski.convert.tensors import Mapped, Planned
from chaski.errors import ModelError

_ANSWERS = ("yes", "no")
_RANK = 4
# The published prompt of the family.
_QUESTION = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {query}
<Document>: {document}<|im_end|>
<|im_start|>assistant
<think>

</think>

"""


def metadata(config: Config) -> Metadata:
    entries = qwen2.metadata(config)
    if is_classifier(config):
        entries |= label_metadata(config)
    elif _is_reranker(config):
        entries |= {"pooling_type": _RANK, "classifier.output_labels": list(_ANSWERS)}
    return entries


def normed_attention(config: Config) -> Iterator[Row]:
    """Yield the attention tensors, including their two norms and the norm before them."""
    yield norm(config, "attn_norm", "input_layernorm")
    yield from attention(config, biases=biases(config))
    yield Row("attn_q_norm", "self_attn.q_norm", (head_size(config),))
    yield Row("attn_k_norm", "self_attn.k_norm", (head_size(config),))
    yield norm(config, "ffn_norm", "post_attention_layernorm")


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    if is_classifier(config):
        yield from _with_scores(config, embeddings(config, names))
    elif _is_reranker(config):
        yield from _with_answers(config, embeddings(config, names))
    else:
        yield from embeddings(config, names)
    rows = [*normed_attention(config), *feed_forward(config, config.get("intermediate_size", int))]
    yield from in_layers(config, rows)


def _with_answers(config: Config, planned: Iterator[Planned]) -> Iterator[Planned]:
    """Replace the output matrix by its rows for two tokens."""
    found = {each.name: each for each in planned}
    output = found.pop("output.weight", None) or found["token_embd.weight"]
    yield from found.values()
    path = config.path.parent / "tokenizer.json"
    ids = Config(path, read_json(path)).part("model").part("vocab")
    rows = [ids.get(answer, int, -1) for answer in _ANSWERS]
    if not all(0 <= row < output.shape[0] for row in rows):
        raise ModelError(f"{path}: a model that ranks needs the tokens {' and '.join(_ANSWERS)}")

    def arrange(values: NDArray[Any]) -> NDArray[Any]:
        return values[rows]

    yield Mapped(
        "cls.output.weight", (len(rows), output.shape[1]), tuple(output.sources), output.shape, arrange
    )


def _with_scores(config: Config, planned: Iterator[Planned]) -> Iterator[Planned]:
    """Replace the output matrix by the matrix of label scores."""
    yield from (each for each in planned if each.name != "output.weight")
    yield scores(config, "score")


def _is_reranker(config: Config) -> bool:
    """Return whether the name of the folder, of the configuration or in the README is that of a reranker."""
    folder = config.path.parent
    names = f"{folder.resolve().name} {config.values.get('_name_or_path')}".lower()
    return "qwen3-reranker" in names or "# qwen3-reranker" in _readme(config)


def _readme(config: Config) -> str:
    path = config.path.parent / "README.md"
    return path.read_text(encoding="utf-8", errors="replace").lower() if path.is_file() else ""


def _templates(config: Config) -> Mapping[str, str]:
    return {"rerank": _QUESTION} if _is_reranker(config) or is_classifier(config) else {}


FAMILY = Family("qwen3", metadata, tensors, templates=_templates)
CHECKPOINTS = ("Qwen3ForCausalLM", "Qwen3ForSequenceClassification", "Qwen3Model")
