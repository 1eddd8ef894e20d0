"""Checkpoints that classify texts by labels: cross-encoders, which score a query with a document."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.convert.config import Config
from chaski.convert.metadata import Metadata
from chaski.convert.tensors import Mapped
from chaski.errors import ModelError

__all__ = ["classifier", "is_classifier", "label_metadata", "scores"]

_RANK = 4
_USUAL = 2  # the number of labels if the configuration names none


def is_classifier(config: Config) -> bool:
    """Return whether the checkpoint has an output for each label."""
    return any(str(name).endswith("ForSequenceClassification") for name in config.list("architectures", str))


def label_metadata(config: Config) -> Metadata:
    """The keys of a model that ranks, with the names of its labels if they have names."""
    labels = _labels(config)
    named = {} if labels == ["LABEL_0", "LABEL_1"] else {"classifier.output_labels": labels}
    return {"pooling_type": _RANK, **named}


def classifier(config: Config, dense: str, output: str, *, is_dense_biased: bool = True) -> Iterator[Mapped]:
    """Yield the layer named `dense` and then the layer named `output`, which computes the scores."""
    hidden, count = config.get("hidden_size", int), len(_labels(config))
    for name, source, rows in (("cls", dense, hidden), ("cls.output", output, count)):
        yield Mapped(f"{name}.weight", (rows, hidden), (f"{source}.weight",))
        if is_dense_biased or source == output:
            yield Mapped(f"{name}.bias", (rows,), (f"{source}.bias",))


def scores(config: Config, name: str) -> Mapped:
    """Return the matrix that computes scores from a decoder's last token."""
    shape = len(_labels(config)), config.get("hidden_size", int)
    return Mapped("cls.output.weight", shape, (f"{name}.weight",))


def _labels(config: Config) -> list[str]:
    """Return the labels in order. Configurations list them by number, and JSON keys are strings."""
    names = config.part("id2label").values
    if not names:
        return [f"LABEL_{i}" for i in range(config.get("num_labels", int, _USUAL))]
    if any(str(i) not in names for i in range(len(names))):
        raise ModelError(f"{config.path}: 'id2label' does not name the labels from 0 on")
    return [str(names[str(i)]) for i in range(len(names))]
