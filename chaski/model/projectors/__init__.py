"""Image encoders for any text model, found by the type that their file declares.

The file is a projector of llama.cpp, whose architecture is `clip`, or that of the text model.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.model.multimodal import MultimodalProcessor

__all__ = ["PROJECTORS", "WITH_COORDINATES", "read_vision"]

PROJECTORS = {
    "deepseekocr": "deepseekocr.vision",
    "deepseekocr2": "deepseekocr.queries",
    "idefics3": "idefics3",
    "internvl": "internvl",
    "kimik25": "moonvit.kimik25",
    "kimivl": "moonvit.kimivl",
    "lfm2": "lfm2",
    "llama4": "llama4",
    "mlp": "mlp",
    "resampler": "resampler",
}
"""The module of this folder for each `projector_type`."""
WITH_COORDINATES = {
    "glm4v": "qwenvl.glm4v",
    "hunyuanvl": "qwenvl.hunyuanvl",
    "paddleocr": "qwenvl.paddleocr",
    "qwen2.5vl_merger": "qwenvl.qwen25vl",
    "qwen2vl_merger": "qwenvl.qwen2vl",
    "qwen3vl_merger": "qwenvl.qwen3vl",
}
"""The same table for text models that rotate tokens by coordinates."""

_IMPLIED = {
    "lfm2": "lfm2",
    "llama4": "llama4",
    "qwen35": "qwen3vl_merger",
    "qwen35moe": "qwen3vl_merger",
    "qwen3vl": "qwen3vl_merger",
    "qwen3vlmoe": "qwen3vl_merger",
}
"""The projector type of an architecture in Ollama's files, which do not contain it."""


def read_vision(
    file: GGUFFile, projector: GGUFFile | None, row_size: int, kinds: Mapping[str, str] = PROJECTORS
) -> MultimodalProcessor | None:
    """Return the image encoder in `projector`, else the one in `file`, else None. Its rows have `row_size`.

    Raises UnsupportedError for an encoder that is not one of `kinds`.
    """
    if projector is None and f"{file.architecture}.vision.block_count" not in file.metadata:
        return None
    source = projector or file
    arch = source.architecture
    key = (
        f"{arch}.projector_type"
        if f"{arch}.projector_type" in source.metadata
        else f"{arch}.vision.projector_type"
    )
    implied = _IMPLIED.get(str(arch))
    kind = source.get(key, str) if implied is None else source.get(key, str, implied)
    if kind not in kinds:
        known = ", ".join(sorted(kinds))
        raise UnsupportedError(
            f"{source.path}: a projector of type {kind!r:.40} does not work with architecture "
            f"{file.architecture!r:.80}; supported: {known}"
        )
    vision: MultimodalProcessor = import_module(f"chaski.model.projectors.{kinds[kind]}").Vision(
        source, row_size
    )
    return vision
