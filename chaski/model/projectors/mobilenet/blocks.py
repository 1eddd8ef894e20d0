"""The blocks of MobileNet V5. Their kinds and sizes are those of the tensors in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import KVShape, LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, Tensor, Weight
from chaski.ml.nn import Module, RMSNorm, attention
from chaski.model.projectors.mobilenet.maps import Maps, Window, halved

__all__ = [
    "EPS",
    "Block",
    "EdgeResidual",
    "InvertedResidual",
    "MobileAttention",
    "Pointwise",
    "Stem",
    "read_block",
]

EPS = 1e-6

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of tensors, by the part of their names after that of the block."""


class Pointwise(Module):
    """A convolution with a kernel of one place: a product with each row."""

    def __init__(self, in_channels: int, channels: int) -> None:
        self.weight = Weight((channels, in_channels), stored=(channels, in_channels, 1, 1), split=0)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight)


class Convolution(Module):
    """A convolution over all channels, computed as a product with the concatenated rows of a window."""

    def __init__(self, in_channels: int, channels: int, kernel: int, stride: int) -> None:
        self._kernel, self._stride = kernel, stride
        taps = kernel**2
        self.weight = Weight(
            (channels, in_channels * taps), stored=(channels, in_channels, kernel, kernel), split=0
        )

    def window(self, side: int) -> Window:
        return Window(side, self._kernel, self._stride)

    def __call__(self, x: Tensor, side: int, maps: Maps) -> Tensor:
        parts = [x.rows(rows) for rows in maps.windows(self.window(side))]
        return ops.linear(
            ops.concat([(part, tap, len(parts)) for tap, part in enumerate(parts)]), self.weight
        )


class DepthwiseConvolution(Module):
    """A convolution of each channel by itself, computed as a sum over the elements of the kernel."""

    def __init__(self, channels: int, kernel: int, stride: int = 1) -> None:
        self._kernel, self._stride = kernel, stride
        taps = kernel**2
        self.weight = Weight((channels, taps), host=True, stored=(channels, 1, kernel, kernel))

    def window(self, side: int) -> Window:
        return Window(side, self._kernel, self._stride)

    def __call__(self, x: Tensor, side: int, maps: Maps) -> Tensor:
        channels = self.weight.shape[0]
        filters = self.weight.elements.reshape(self.weight.shape)
        total: Tensor | None = None
        for tap, rows in enumerate(maps.windows(self.window(side))):
            part = ops.scale_heads(x.rows(rows).reshape(channels, 1), filters[:, tap]).reshape(channels)
            total = part if total is None else total + part
        assert total is not None
        return total


class Stem(Module):
    """The first convolution, of pixels, with a bias."""

    def __init__(self, channels: int) -> None:
        self.conv = StemConvolution(channels)
        self.bn = RMSNorm(channels, EPS)

    def __call__(self, pixels: Tensor, is_inside: Tensor) -> Tensor:
        """Return the map of `pixels` under the kernel. `is_inside` is 0 for the row of zeros, otherwise 1."""
        return ops.scale_rows(ops.gelu_tanh(self.bn(self.conv(pixels))), is_inside)


class StemConvolution(Module):
    kernel, colors = 3, 3

    def __init__(self, channels: int) -> None:
        k, colors = self.kernel, self.colors
        self.weight = Weight((channels, colors * k * k), stored=(channels, colors, k, k))
        self.bias = Weight((channels,), optional=True, stored=(1, channels, 1, 1))

    def __call__(self, pixels: Tensor) -> Tensor:
        return ops.linear(pixels, self.weight, self.bias if self.bias.is_present else None)


class NormedPointwise(Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        self.conv = Pointwise(in_channels, channels)
        self.bn = RMSNorm(channels, EPS)

    def __call__(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class NormedDepthwise(Module):
    def __init__(self, channels: int, kernel: int, stride: int) -> None:
        self.conv = DepthwiseConvolution(channels, kernel, stride)
        self.bn = RMSNorm(channels, EPS)

    def __call__(self, x: Tensor, side: int, maps: Maps) -> Tensor:
        return self.bn(self.conv(x, side, maps))


class LayerScale(Module):
    def __init__(self, channels: int) -> None:
        self.gamma = Weight((channels,))

    def __call__(self, x: Tensor) -> Tensor:
        return ops.multiply_vector(x, self.gamma)


class EdgeResidual(Module):
    """A convolution to more channels, then a product back to few."""

    def __init__(self, shapes: Shapes, stride: int) -> None:
        inner, in_channels, kernel, _ = shapes["conv_exp.weight"]
        self.in_channels, self.channels = in_channels, shapes["conv_pwl.weight"][0]
        self.stride = stride
        self.conv_exp = Convolution(in_channels, inner, kernel, stride)
        self.bn1 = RMSNorm(inner, EPS)
        self.conv_pwl = Pointwise(inner, self.channels)
        self.bn2 = RMSNorm(self.channels, EPS)

    def windows(self, side: int) -> Iterator[Window]:
        yield self.conv_exp.window(side)

    def __call__(self, x: Tensor, side: int, maps: Maps) -> Tensor:
        y = self.bn2(self.conv_pwl(ops.gelu_tanh(self.bn1(self.conv_exp(x, side, maps)))))
        return y + x if self.stride == 1 and self.in_channels == self.channels else y


class InvertedResidual(Module):
    """The universal inverted bottleneck: to more channels and back, with convolutions of single channels."""

    def __init__(self, shapes: Shapes, stride: int) -> None:
        inner, self.in_channels = shapes["pw_exp.conv.weight"][:2]
        self.channels = shapes["pw_proj.conv.weight"][0]
        start, mid = (shapes.get(f"dw_{part}.conv.weight", (0, 0, 0, 0))[3] for part in ("start", "mid"))
        self.stride = stride if start or mid else 1
        self.dw_start = NormedDepthwise(self.in_channels, start, 1 if mid else stride) if start else None
        self.pw_exp = NormedPointwise(self.in_channels, inner)
        self.dw_mid = NormedDepthwise(inner, mid, stride) if mid else None
        self.pw_proj = NormedPointwise(inner, self.channels)
        self.layer_scale = LayerScale(self.channels) if "layer_scale.gamma" in shapes else None

    def windows(self, side: int) -> Iterator[Window]:
        yield from (part.conv.window(side) for part in (self.dw_start, self.dw_mid) if part is not None)

    def __call__(self, x: Tensor, side: int, maps: Maps) -> Tensor:
        y = x if self.dw_start is None else self.dw_start(x, side, maps)
        y = ops.gelu_tanh(self.pw_exp(y))
        if self.dw_mid is not None:
            y = ops.gelu_tanh(self.dw_mid(y, side, maps))
        y = self.pw_proj(y)
        if self.layer_scale is not None:
            y = self.layer_scale(y)
        return y + x if self.stride == 1 and self.in_channels == self.channels else y


class Query(Module):
    def __init__(self, in_channels: int, channels: int) -> None:
        self.proj = Pointwise(in_channels, channels)


class Seen(Query):
    """The keys or the values. With a kernel, they are those of a map of half the side."""

    def __init__(self, in_channels: int, channels: int, kernel: int) -> None:
        super().__init__(in_channels, channels)
        self.down_conv = DepthwiseConvolution(in_channels, kernel, 2) if kernel else None
        self.norm = RMSNorm(in_channels, EPS) if kernel else None

    def __call__(self, x: Tensor, side: int, places: Tensor, maps: Maps) -> Tensor:
        if self.down_conv is not None and self.norm is not None:
            x = self.norm(self.down_conv(x, side, maps))
        return self.proj(x.rows(places))


class AttentionParts(Module):
    def __init__(self, query: Query, key: Seen, value: Seen, output: Query) -> None:
        self.query, self.key, self.value, self.output = query, key, value, output


class MobileAttention(Module):
    """Attention between the places of a map, in which all heads share their keys and values."""

    stride = 1

    def __init__(self, shapes: Shapes) -> None:
        inner, size = shapes["attn.query.proj.weight"][:2]
        (key_size, _), (value_size, _) = (shapes[f"attn.{x}.proj.weight"][:2] for x in ("key", "value"))
        kernels = [shapes.get(f"attn.{x}.down_conv.weight", (0, 0, 0, 0))[3] for x in ("key", "value")]
        self.in_channels, self.channels = size, shapes["attn.output.proj.weight"][0]
        self._heads, self.kv_shape = inner // key_size, KVShape(1, key_size, value_size)
        if bool(kernels[0]) != bool(kernels[1]):
            raise ValueError("keys and values of different maps")
        self._is_halved = kernels[0] > 0
        self.norm = RMSNorm(size, EPS)
        self.attn = AttentionParts(
            Query(size, inner),
            Seen(size, key_size, kernels[0]),
            Seen(size, value_size, kernels[1]),
            Query(self._heads * value_size, self.channels),
        )
        self.layer_scale = LayerScale(self.channels) if "layer_scale.gamma" in shapes else None

    def seen_side(self, side: int) -> int:
        """Return the side of the map of keys for a map of `side`."""
        return halved(side) if self._is_halved else side

    def windows(self, side: int) -> Iterator[Window]:
        parts = self.attn.key, self.attn.value
        yield from (part.down_conv.window(side) for part in parts if part.down_conv is not None)

    def __call__(
        self, x: Tensor, side: int, maps: Maps, dims: tuple[Dim, Dim], history: LayerCache
    ) -> Tensor:
        """Return the map after the attention. `dims`: those of its places and of the places of the keys."""
        c = self.kv_shape
        places, seen = maps.places(side, dims[0]), maps.places(self.seen_side(side), dims[1])
        h, parts = self.norm(x), self.attn
        q = parts.query.proj(h.rows(places)).reshape(self._heads, c.key_size)
        k = parts.key(h, side, seen, maps).reshape(1, c.key_size)
        v = parts.value(h, side, seen, maps).reshape(1, c.value_size)
        y = parts.output.proj(attention(q, k, v, history, scale=c.key_size**-0.5))
        if self.layer_scale is not None:
            y = self.layer_scale(y)
        return ops.scatter(x, x.rows(places) + y, places)


Block = EdgeResidual | InvertedResidual | MobileAttention


def read_block(file: GGUFFile, name: str, is_first: bool) -> Block | None:
    """Return the block `name`, None if the file has none. The first of a stage halves the side of the map.

    Raises ModelError for a block of an unknown kind.
    """
    shapes = {
        key.removeprefix(name): info.shape for key, info in file.tensors.items() if key.startswith(name)
    }
    if not shapes:
        return None
    stride = 2 if is_first else 1
    try:
        if "conv_exp.weight" in shapes:
            return EdgeResidual(shapes, stride)
        if "attn.query.proj.weight" in shapes:
            return MobileAttention(shapes)
        return InvertedResidual(shapes, stride)
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        raise ModelError(
            f"{file.path}: the tensors {name}* are not those of a block of MobileNet V5"
        ) from error
