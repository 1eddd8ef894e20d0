"""The output layer of a model that ranks: scores of labels in place of logits or a vector."""

from __future__ import annotations

from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Linear
from chaski.model.config import DecoderConfig

__all__ = ["Classifier"]


class Classifier(Linear):
    """A score of each label. BERT's kin have a layer with tanh before it, which decoders lack."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config.hidden_size, config.hidden_size, optional=True)
        self.output = Linear(config.hidden_size, config.num_labels)

    def __call__(self, x: Tensor) -> Tensor:
        if self.weight.is_present:
            x = ops.softcap(super().__call__(x), cap=1.0)
        return self.output(x)
