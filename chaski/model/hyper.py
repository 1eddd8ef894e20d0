"""Hyper-connections (Zhu et al. 2024, https://arxiv.org/abs/2409.19606).

A token has several residual streams instead of one. A block reads a mixture of the normalized streams, and
each stream receives the block's output times its own weight. Mixtures have gates (Qwen 3.8 Flash-Next), or
they are sums of the streams with weights that do not depend on each other (Hy 4).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import Linear, Module, StreamNorm

__all__ = [
    "HyperConfig",
    "HyperConnection",
    "IndependentConfig",
    "IndependentConnection",
    "IndependentSum",
    "StreamMixer",
    "add_to_streams",
    "streams_of",
    "sum_of_streams",
]


class HyperConfig(Struct, frozen=True):
    """`count` streams of `size` elements, and the rank of the matrices that mix them."""

    count: int
    size: int
    rank: int
    eps: float

    @classmethod
    def read(cls, file: GGUFFile, eps: float) -> HyperConfig:
        """Read the sizes. Raises ModelError for a single stream."""
        prefix = f"{file.architecture}.hyper_connection"
        count = file.get(f"{prefix}.count", int)
        if count < 2:
            raise ModelError(f"{file.path}: {prefix}.count is {count}, but there must be at least 2 streams")
        size = file.get(f"{file.architecture}.embedding_length", int)
        return cls(count, size, file.get(f"{prefix}.low_rank", int), eps)

    @property
    def width(self) -> int:
        """The elements of all streams."""
        return self.count * self.size


class StreamMixer(Module):
    """The mixture of all streams that a block reads. Its tensors have names that start with `name`."""

    inline = True

    def __init__(self, name: str, config: HyperConfig) -> None:
        c = self._config = config
        self._name = name
        self._add("norm", StreamNorm(c.count, c.size, c.eps))
        self._add("down", Linear(c.width, c.rank))
        self._add("up", Linear(c.rank, c.width))

    def _add(self, part: str, module: Module) -> None:
        setattr(self, f"{self._name}_{part}", module)

    def _of(self, part: str, x: Tensor) -> Tensor:
        found: Tensor = getattr(self, f"{self._name}_{part}")(x)
        return found

    def mixed(self, normalized: Tensor) -> Tensor:
        """Return the mean of normalized streams (n, width), each times its gates -> (n, size)."""
        c = self._config
        low = ops.silu(self._of("down", normalized) * (1 / c.count))
        gated = ops.multiply(ops.sigmoid(self._of("up", low)), normalized)
        return sum_of_streams(gated, c.count, c.size) * (1 / c.count)

    def __call__(self, x: Tensor) -> Tensor:
        return self.mixed(self._of("norm", x))


class HyperConnection(StreamMixer):
    """A mixer with weights for the block's output."""

    def __init__(self, name: str, config: HyperConfig) -> None:
        super().__init__(name, config)
        self._add("inject", Linear(config.width, config.count))

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a block's input (n, size) and the weights of its output for each stream (n, count)."""
        normalized = self._of("norm", x)
        weights = ops.sigmoid(self._of("inject", normalized) * (1 / self._config.count)) * 2.0
        return self.mixed(normalized), weights


class IndependentConfig(Struct, frozen=True):
    """`count` streams of `size` elements.

    least: what is added to weights. most: the factor of those of a block's output. eps: of the norm.
    """

    count: int
    size: int
    least: float
    most: float
    eps: float

    @classmethod
    def read(cls, file: GGUFFile, eps: float) -> IndependentConfig:
        """Read the keys. Raises ModelError for a number of streams that is not positive."""
        prefix = f"{file.architecture}.hyper_connection"
        count = file.get(f"{prefix}.count", int)
        if count < 1:
            raise ModelError(f"{file.path}: {prefix}.count is {count}, but there must be at least 1 stream")
        size = file.get(f"{file.architecture}.embedding_length", int)
        least, most = (file.get(f"{prefix}.{name}", float) for name in ("epsilon", "magnitude"))
        return cls(count, size, least, most, eps)


class _Vector(Module):
    def __init__(self, size: int, host: bool = False, constant: float | None = None) -> None:
        self.weight = Weight((size,), host=host, constant=constant)


class _Matrix(Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        self.weight = Weight((out_features, in_features))


class IndependentSum(Module):
    """The sum of streams x (n, count · size), each times its weight, which follows from all streams.

    Its tensors have names that start with `name`. `parts`: how many weights each stream has.
    """

    inline = True

    def __init__(self, name: str, config: IndependentConfig, parts: int = 1) -> None:
        c = self._config = config
        self._name, self._num_shares = name, parts
        self._set("fn", _Matrix(c.count * c.size, parts * c.count))
        self._set("base", _Vector(parts * c.count))
        self._set("scale", _Vector(parts, host=True))
        self._set("least", _Vector(c.count, constant=c.least))

    def _set(self, part: str, module: Module) -> None:
        setattr(self, f"{self._name}_{part}", module)

    def _weight(self, part: str) -> Weight:
        weight: Weight = getattr(self, f"{self._name}_{part}").weight
        return weight

    def shares(self, x: Tensor) -> list[Tensor]:
        """Return the sigmoids of the weights (n, count) of each part."""
        c, parts = self._config, self._num_shares
        product = ops.linear(ops.rms_norm(x, None, c.eps), self._weight("fn"))
        scaled = ops.scale_heads(product.reshape(parts, c.count), self._weight("scale").elements)
        found = ops.sigmoid(ops.add_vector(scaled.reshape(parts * c.count), self._weight("base")))
        return [ops.slice(found, part * c.count, c.count) for part in range(parts)]

    def at_least(self, weights: Tensor) -> Tensor:
        return ops.add_vector(weights, self._weight("least"))

    def summed(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of the streams times their weights (n, count) -> (n, size)."""
        c = self._config
        scaled = ops.scale_rows(x.reshape(c.count, c.size), weights).reshape(c.count * c.size)
        return sum_of_streams(scaled, c.count, c.size)

    def __call__(self, x: Tensor) -> Tensor:
        (own,) = self.shares(x)
        return self.summed(x, self.at_least(own))


class IndependentConnection(IndependentSum):
    """The connection of the streams and a block."""

    def __init__(self, name: str, config: IndependentConfig) -> None:
        super().__init__(name, config, parts=2)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a block's input (n, size) and the weights of its output for each stream (n, count)."""
        own, output = self.shares(x)
        return self.summed(x, self.at_least(own)), self.at_least(output * self._config.most)


def sum_of_streams(x: Tensor, count: int, size: int) -> Tensor:
    """Return the sum of the streams x (n, count · size)."""
    total, *others = [ops.slice(x, index * size, size) for index in range(count)]
    for other in others:
        total = total + other
    return total


def add_to_streams(x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    """Add y (n, size) times the weight of each stream (n, count) to the streams x (n, width)."""
    count = weights.shape[1]
    assert isinstance(count, int)
    return x + _joined([ops.scale_rows(y, ops.slice(weights, index, 1)) for index in range(count)])


def streams_of(x: Tensor, count: int) -> Tensor:
    """Return `count` streams that are all x (n, size) -> (n, width)."""
    return _joined([x] * count)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    size = parts[0].shape[1]
    assert isinstance(size, int)
    return ops.concat([(part, index * size, 1) for index, part in enumerate(parts)])
