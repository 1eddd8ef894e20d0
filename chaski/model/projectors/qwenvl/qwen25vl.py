"""Qwen 2.5-VL's image encoder (Bai et al. 2025, arXiv 2502.13923): most layers attend within windows."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.ml.nn import RMSNorm, SwiGLU
from chaski.model.projectors.qwenvl import encoder
from chaski.model.projectors.qwenvl.encoder import Tower, VisionConfig

_MIN_ROWS = 4
_WINDOW = 112  # pixels


class Vision(encoder.Vision):
    def __init__(self, file: GGUFFile, row_size: int) -> None:
        config = VisionConfig.read(file, _MIN_ROWS)
        pixels = file.get(f"{file.architecture}.vision.window_size", int, 0) or _WINDOW
        window = pixels // (config.patch_size * config.square)
        if window < 1:
            raise ModelError(f"{file.path}: windows of {pixels} pixels are smaller than a square of patches")
        config = replace(config, window=window, full=_full(file, config.num_layers))
        tower = Tower(
            config,
            lambda size: RMSNorm(size, config.eps),
            lambda: SwiGLU(config.hidden_size, config.ffn_size),
        )
        super().__init__(config, row_size, tower)


def _full(file: GGUFFile, num_layers: int) -> frozenset[int]:
    """Return the layers in which all patches see each other: listed, or at regular intervals."""
    prefix = f"{file.architecture}.vision"
    if f"{prefix}.fullatt_block_indexes" in file.metadata:
        return frozenset(file.get(f"{prefix}.fullatt_block_indexes", list[int]).tolist())
    interval = file.get(f"{prefix}.n_wa_pattern", int)
    if interval < 0:
        raise ModelError(f"{file.path}: {prefix}.n_wa_pattern = {interval}")
    return frozenset(range(interval - 1, num_layers, interval) if interval else range(num_layers))
