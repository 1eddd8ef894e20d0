"""Nemotron 4 and Minitron (Parmar et al. 2024): layer norms, a squared ReLU, and a partial rope."""

from __future__ import annotations

from chaski.ml import ops
from chaski.ml.nn import MLP
from chaski.model.arch import starcoder2
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("nemotron", "Nemotron 4, Minitron")


class Model(starcoder2.Model):
    def ffn(self) -> MLP:
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.squared_relu)
