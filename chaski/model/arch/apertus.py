"""Apertus (Swiss AI 2025): head norms, and xIELU (Huang & Schlag 2024) instead of a gate."""

from __future__ import annotations

import math

from msgspec import Struct

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import DecoderLayer, Linear, Module
from chaski.model.arch import llama, qwen2, qwen3
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("apertus", "Apertus 8B and 70B", tools=("apertus",), thinking=("apertus",))


_NEAR_ZERO = 1e-4


class XIELU(Struct, frozen=True):
    """The numbers of the activation of a layer: alpha · x² + beta · x for x > 0, else an exponential."""

    positive: float
    negative: float
    beta: float

    @classmethod
    def stored(cls, positive: float, negative: float, beta: float) -> XIELU:
        """Return the activation for the numbers in a file, of which softplus makes those of the formula."""
        return cls(_softplus(positive), beta + _softplus(negative), beta)


class FeedForward(Module):
    """ffn_down(xIELU(ffn_up x))."""

    inline = True

    def __init__(self, size: int, hidden: int, activation: XIELU) -> None:
        self._activation = activation
        self._minus_one = Weight((hidden,), constant=-1.0)
        self.ffn_up = Linear(size, hidden)
        self.ffn_down = Linear(hidden, size)

    def __call__(self, x: Tensor) -> Tensor:
        a, x = self._activation, self.ffn_up(x)
        low = ops.clamp(x, low=-math.inf, high=0.0)
        bent = ops.add_vector(ops.exp(low), self._minus_one) + low * -1.0
        return self.ffn_down(ops.squared_relu(x) * a.positive + bent * a.negative + x * a.beta)


class Model(qwen2.Model):
    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        c = self.config
        names = ("alpha_p", "alpha_n", "beta")
        numbers = [file.get(f"xielu.{name}", list[float]).tolist() for name in names]
        if {len(each) for each in numbers} != {c.num_layers}:
            raise ModelError(
                f"{file.path}: xielu.alpha_p, xielu.alpha_n and xielu.beta do not have a number for each of "
                f"{c.num_layers} layers; convert the checkpoint again"
            )
        _refuse_bound(file)
        return [
            llama.Layer(
                c, qwen3.Attention(c), FeedForward(c.hidden_size, c.ffn_size, XIELU.stored(*of_layer))
            )
            for of_layer in zip(*numbers, strict=True)
        ]


def _refuse_bound(file: GGUFFile) -> None:
    """Refuse a bound of the exponential that changes results."""
    bounds = file.get("xielu.eps", list[float]).tolist()
    if any(abs(bound) > _NEAR_ZERO for bound in bounds):
        raise UnsupportedError(
            f"{file.path}: xielu.eps is {max(bounds, key=abs)}; only 0 and nearly 0 are supported"
        )


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
