"""Qwen 2-VL's image encoder (Wang et al. 2024): CLIP layers in which all patches see each other."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.nn import LayerNorm
from chaski.model.projectors.qwenvl import encoder
from chaski.model.projectors.qwenvl.encoder import FeedForward, Tower, VisionConfig

_MIN_ROWS = 4


class Vision(encoder.Vision):
    def __init__(self, file: GGUFFile, row_size: int) -> None:
        config = VisionConfig.read(file, _MIN_ROWS)
        down = file.tensors.get("v.blk.0.ffn_down.weight")
        is_swapped = False
        if down is not None:  # llama.cpp's converter writes another number for the inner size
            is_swapped = down.shape[0] != config.hidden_size
            config = replace(config, ffn_size=down.shape[0] if is_swapped else down.shape[-1])
        tower = Tower(
            config,
            lambda size: LayerNorm(size, config.eps),
            lambda: FeedForward(config, ops.quick_gelu, is_swapped),
        )
        super().__init__(config, row_size, tower)
