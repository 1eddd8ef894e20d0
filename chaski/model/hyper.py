"""Hyper-connections (Zhu et al. 2024, https://arxiv.org/abs/2409.19606) with gates (Qwen 3.8 Flash-Next).

A token has several residual streams instead of one. A block reads a mixture of the normalized streams, and
each stream receives the block's output times its own weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import Linear, Module, StreamNorm

__all__ = ["HyperConfig", "HyperConnection", "StreamMixer", "add_to_streams", "streams_of"]


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
        total, *others = [ops.slice(gated, index * c.size, c.size) for index in range(c.count)]
        for other in others:
            total = total + other
        return total * (1 / c.count)

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
