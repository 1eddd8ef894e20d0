"""The output layer of a model that ranks: scores of labels instead of logits or an embedding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from chaski.errors import UnsupportedError
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Linear
from chaski.model.config import DecoderConfig
from chaski.model.pooling import SINGLE_LAYER

__all__ = ["Classifier"]

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "tanh": partial(ops.softcap, cap=1.0),
    "relu": ops.relu,
}


class Classifier(Linear):
    """A layer that computes a score for each label.

    BERT models have a layer with tanh or ReLU before the scores; decoders have none. If a file has only one
    layer, that layer makes the scores, and tanh bounds them, as in llama.cpp.
    Raises UnsupportedError for another activation.
    """

    def __init__(self, config: DecoderConfig) -> None:
        if config.classifier_activation not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{config.file}.classifier.activation = {config.classifier_activation!r:.40} is not "
                f"supported; supported: {', '.join(_ACTIVATIONS)}"
            )
        self._activation = _ACTIVATIONS[config.classifier_activation]
        is_single = config.classifier == SINGLE_LAYER
        rows = config.num_labels if is_single else config.hidden_size
        super().__init__(config.hidden_size, rows, optional=True)
        self.output = Linear(config.hidden_size, config.num_labels, optional=is_single)

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight.is_present:
            x = self._activation(super().__call__(x))
        return self.output(x) if self.output.weight.is_present else x
