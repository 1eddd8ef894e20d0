"""Qwen 3-VL, text (Bai et al. 2025, arXiv 2511.21631): Qwen 3, rotated by three interleaved coordinates.

Parts of the image rows are added after the first layers; see `Inputs.with_deep_images`.
"""

from __future__ import annotations

from msgspec.structs import replace

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.model.arch import qwen3
from chaski.model.architecture import Architecture
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.projectors import WITH_COORDINATES
from chaski.model.rope import read_axes

ARCHITECTURE = Architecture(
    "qwen3vl",
    "Qwen 3-VL",
    tools=("qwen3",),
    thinking=("qwen3", "qwen3-thinking"),
    notes="Pictures and videos, each of at most half of the context.",
)


class Model(qwen3.Model):
    """Qwen 3-VL. Without an encoder, a token's coordinates all equal its position, as in Qwen 3."""

    projectors = WITH_COORDINATES

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        if self.vision is None:
            return
        axes = read_axes(file, self.config.rope.dims // 2, [24, 20, 20], interleaved=True)
        self._rope = replace(self._rope, axes=axes)
        config = self.config
        # The last layer computes only the output rows, which do not include all tokens.
        check_deep(file, projector, self.vision, config.hidden_size, range(config.num_layers))


def check_deep(
    file: GGUFFile, projector: GGUFFile | None, vision: MultimodalProcessor, hidden_size: int, counts: range
) -> None:
    """Raise ModelError if the encoder makes rows for another number of layers than the text model expects."""
    count = vision.shape.row_size // hidden_size - 1
    key = f"{file.architecture}.n_deepstack_layers"
    wanted = file.get(key, int, count)
    if count != wanted or count not in counts:
        raise ModelError(
            f"{(projector or file).path}: the encoder makes rows for {count} layers of the text model, "
            f"but {file.path} has {key} = {wanted} (at most {counts[-1]})"
        )
