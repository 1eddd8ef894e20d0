"""A quantized weight among the tensors of a checkpoint: its main tensor and those next to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from chaski.convert.config import Config
from chaski.convert.quantized.decoded_array import DecodeRows, decoded_tensor
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.safetensors import SafeTensor

__all__ = ["Decoded", "Stored", "check_shape", "layout"]

# The tensors of a module of GPTQ and AWQ.
_PARTS = ("qweight", "qzeros", "scales", "g_idx", "bias")


class Decoded(Struct, frozen=True):
    """A tensor that families see. parts: the names of the stored tensors that it stands for."""

    tensor: SafeTensor
    parts: tuple[str, ...]


class Stored(Struct, frozen=True):
    """The stored tensors by plain name, and the settings of their quantization."""

    settings: Config
    tensors: Mapping[str, SafeTensor]

    def ending(self, *suffixes: str) -> Iterator[tuple[str, SafeTensor]]:
        """Yield the tensors whose names end with one of `suffixes`."""
        return ((name, each) for name, each in self.tensors.items() if name.endswith(suffixes))

    def get(self, name: str) -> SafeTensor | None:
        return self.tensors.get(name)

    def require(self, name: str, of: str) -> SafeTensor:
        """Return a tensor that `of` needs. Raises ModelError if it is missing."""
        if name not in self.tensors:
            path = self.tensors[of].path
            raise ModelError(f"{path}: tensor {name!r} is missing; {of!r} cannot be decoded without it")
        return self.tensors[name]

    def decoded(self, name: str, shape: tuple[int, ...], decode: DecodeRows, *parts: str) -> Decoded:
        """Return the tensor `name`. parts: stored tensors, the main one first; missing ones are left out."""
        found = tuple(part for part in parts if part in self.tensors)
        return Decoded(decoded_tensor(name, self.tensors[parts[0]], shape, decode), found)

    def parts_of_module(self, base: str) -> Iterator[str]:
        """Yield the names of a module's tensors in GPTQ and AWQ.

        A bias of zeros is one of them, because some quantizers add it to layers without a bias.
        """
        for part in _PARTS:
            each = self.get(f"{base}{part}")
            if each is not None and (part != "bias" or not each.data.any()):
                yield f"{base}{part}"


def layout(settings: Config, key: str, known: tuple[str, ...]) -> str:
    """Return how tensors are laid out, the first of `known` by default."""
    found = settings.get(key, str, settings.get("format", str, known[0])).lower()
    if found not in known:
        raise UnsupportedError(
            f"{settings.path}: {key!r} of the quantization is {found!r:.80}; known are {', '.join(known)}"
        )
    return found


def check_shape(tensor: SafeTensor, shape: tuple[int, ...]) -> None:
    """Raise ModelError for a tensor of another shape."""
    if tensor.shape != shape:
        raise ModelError(f"{tensor.path}: tensor {tensor.name!r} has shape {tensor.shape}, not {shape}")
