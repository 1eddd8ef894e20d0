"""Manifold-constrained hyper-connections (Xie et al. 2026): several residual streams that a matrix mixes.

A block reads a weighted sum of a token's streams. Then a nearly doubly stochastic matrix mixes the streams,
and each one receives the block's output times its own weight. All weights follow from the streams.
"""

from __future__ import annotations

from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import Module

__all__ = ["ManifoldConfig", "ManifoldConnection", "ManifoldHead"]


_MOST_ITERATIONS = 1000


class ManifoldConfig(Struct, frozen=True):
    """`count` streams of `size` elements. eps: of Sinkhorn's sums. norm_eps: of the norm of all streams."""

    count: int
    size: int
    iterations: int
    eps: float
    norm_eps: float

    @classmethod
    def read(cls, file: GGUFFile, norm_eps: float) -> ManifoldConfig:
        """Read the keys. Raises ModelError for numbers that no model has."""
        prefix = f"{file.architecture}.hyper_connection"
        count, iterations = (file.get(f"{prefix}.{name}", int) for name in ("count", "sinkhorn_iterations"))
        if count < 1 or not 1 <= iterations <= _MOST_ITERATIONS:
            raise ModelError(
                f"{file.path}: {prefix} has {count} streams and {iterations} iterations; there must be at "
                f"least 1, and at most {_MOST_ITERATIONS} iterations"
            )
        size = file.get(f"{file.architecture}.embedding_length", int)
        return cls(count, size, iterations, file.get(f"{prefix}.epsilon", float), norm_eps)


class _Vector(Module):
    def __init__(self, size: int, host: bool = False, constant: float | None = None) -> None:
        self.weight = Weight((size,), host=host, constant=constant)


class _Matrix(Module):
    def __init__(self, in_features: int, out_features: int) -> None:
        self.weight = Weight((out_features, in_features), split=0)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight)


class _Mixer(Module):
    """Weights that follow from all streams: parts of a product, each with its scale, and a bias."""

    inline = True

    def __init__(self, name: str, config: ManifoldConfig, *parts: int) -> None:
        c = self._config = config
        self._name, self._parts_of = name, parts
        self._add("fn", _Matrix(c.count * c.size, sum(parts)))
        self._add("base", _Vector(sum(parts)))
        self._add("scale", _Vector(len(parts), host=True))
        self._add("floor", _Vector(c.count, constant=c.eps))

    def _add(self, part: str, module: Module) -> None:
        setattr(self, f"{self._name}_{part}", module)

    def _vector(self, part: str) -> Weight:
        weight: Weight = getattr(self, f"{self._name}_{part}").weight
        return weight

    def _weights(self, x: Tensor) -> list[Tensor]:
        """Return the parts of the weights for streams x (n, count · size), before their functions."""
        product = getattr(self, f"{self._name}_fn")(ops.rms_norm(x, None, self._config.norm_eps))
        starts = [sum(self._parts_of[:index]) for index in range(len(self._parts_of))]
        scales = self._vector("scale").elements
        scaled = ops.concat(
            [
                (ops.slice(product, start, size) * float(scale), start, 1)
                for start, size, scale in zip(starts, self._parts_of, scales, strict=True)
            ]
        )
        biased = ops.add_vector(scaled, self._vector("base"))
        return [ops.slice(biased, *part) for part in zip(starts, self._parts_of, strict=True)]

    def _sum(self, x: Tensor, weights: Tensor) -> Tensor:
        """Return the sum of the streams with the sigmoids of weights (n, count) -> (n, size)."""
        c = self._config
        factors = ops.add_vector(ops.sigmoid(weights), self._vector("floor"))
        mixed = ops.mix_streams(x.reshape(c.count, c.size), factors.reshape(c.count, 1))
        return mixed.reshape(c.size)


class ManifoldConnection(_Mixer):
    """The connection of the streams and a block. Its tensors have names that start with `name`."""

    def __init__(self, name: str, config: ManifoldConfig) -> None:
        super().__init__(name, config, config.count, config.count, config.count**2)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the input of the block (n, size), and the weights of its output and of the streams."""
        c = self._config
        own, output, streams = self._weights(x)
        mixture = ops.sinkhorn(streams.reshape(c.count, c.count), c.iterations, c.eps)
        return self._sum(x, own), ops.sigmoid(output) * 2.0, mixture.reshape(c.count**2)

    def write(self, x: Tensor, y: Tensor, output: Tensor, streams: Tensor) -> Tensor:
        """Return the streams after a block with the output y (n, size)."""
        c = self._config
        mixed = ops.mix_streams(x.reshape(c.count, c.size), streams.reshape(c.count, c.count))
        added = ops.mix_streams(y.reshape(1, c.size), output.reshape(1, c.count))
        return (mixed + added).reshape(c.count * c.size)


class ManifoldHead(_Mixer):
    """The sum of the streams that the last norm reads."""

    def __init__(self, name: str, config: ManifoldConfig) -> None:
        super().__init__(name, config, config.count)

    def __call__(self, x: Tensor) -> Tensor:
        return self._sum(x, *self._weights(x))
