"""Qwen 3-VL, text (Bai et al. 2025, arXiv 2511.21631): Qwen 3, turned by three coordinates in turn.

Parts of the rows of images are added behind its first layers, see `Inputs.with_deep_images`.
"""

from __future__ import annotations

from dataclasses import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.model.arch import qwen3
from chaski.model.projectors import WITH_COORDINATES
from chaski.model.rope import read_axes


class Model(qwen3.Model):
    """Without an encoder the coordinates of a token are its position, as in Qwen 3."""

    projectors = WITH_COORDINATES

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        if self.vision is None:
            return
        axes = read_axes(file, self.config.rope.dims // 2, [24, 20, 20], interleaved=True)
        self._rope = replace(self._rope, axes=axes)
        num_deep = self.vision.shape.row_size // self.config.hidden_size - 1
        key = f"{file.architecture}.n_deepstack_layers"
        if file.get(key, int, num_deep) != num_deep:
            raise ModelError(
                f"{(projector or file).path}: the encoder makes rows for {num_deep} layers of the "
                f"text model, but {file.path} has {key} = {file.get(key, int)}"
            )
        if num_deep >= self.config.num_layers:
            raise ModelError(
                f"{file.path}: rows of images for {num_deep} layers of {self.config.num_layers}; "
                "the last layer takes none"
            )
