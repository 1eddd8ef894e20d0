"""Gemma 4's two image encoders: a tower of layers or, in the 12B, a single matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.arch.gemma4 import unified, vision
from chaski.model.multimodal import MultimodalProcessor

__all__ = ["read_vision"]

_KINDS: Mapping[str, Callable[[GGUFFile, int], MultimodalProcessor]] = {
    "gemma4v": vision.Vision,
    "gemma4uv": unified.Vision,
}


def read_vision(file: GGUFFile, projector: GGUFFile | None, row_size: int) -> MultimodalProcessor | None:
    """Return the encoder in `projector`, else the one in `file`, else None.

    Raises UnsupportedError for a projector of another model.
    """
    if projector is None:
        if "gemma4.vision.block_count" not in file.metadata:
            return None
        has_layers = file.get("gemma4.vision.block_count", int) > 0
        return _KINDS["gemma4v" if has_layers else "gemma4uv"](file, row_size)
    kind = projector.get("clip.vision.projector_type", str, projector.get("clip.projector_type", str, ""))
    if kind not in _KINDS:
        raise UnsupportedError(f"{projector.path}: a projector of type {kind!r:.40} does not fit Gemma 4")
    return _KINDS[kind](projector, row_size)
