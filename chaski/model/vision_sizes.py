"""The sizes of an image encoder's layers, which the configuration of every encoder extends."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import KVShape

__all__ = ["VisionSizes", "read_sizes"]


class VisionSizes(Struct, frozen=True, kw_only=True):
    """The layers and the heads of an encoder. `eps` is that of its norms."""

    hidden_size: int
    ffn_size: int
    num_layers: int
    num_heads: int
    eps: float

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def heads(self) -> KVShape:
        """The keys and values of a layer."""
        return KVShape(self.num_heads, self.head_size, self.head_size)


def read_sizes(file: GGUFFile, eps: float | None = None) -> dict[str, Any]:
    """Return the fields of `VisionSizes` from the metadata of a model, or of a projector.

    eps: the value for files that state none. Without it, they are refused with ModelError.
    """
    prefix = f"{file.architecture}.vision"
    key = f"{prefix}.attention.layer_norm_epsilon"
    return {
        "hidden_size": file.get(f"{prefix}.embedding_length", int),
        "ffn_size": file.get(f"{prefix}.feed_forward_length", int),
        "num_layers": file.get(f"{prefix}.block_count", int),
        "num_heads": file.get(f"{prefix}.attention.head_count", int),
        "eps": file.get(key, float) if eps is None else file.get(key, float, eps),
    }
