"""Qwen 3.5, dense and with experts (Qwen Team 2026): Qwen 3 Next, rotated by coordinates if it has vision."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.model.arch import qwen3next
from chaski.model.arch.qwen3vl import check_deep
from chaski.model.architecture import Architecture
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.projectors import WITH_COORDINATES, read_vision
from chaski.model.rope import read_axes

ARCHITECTURE = Architecture(
    "qwen35",
    "Qwen 3.5, dense",
    tools=("qwen3.5",),
    thinking=("qwen3.5",),
    notes="Pictures and videos, each of at most half of the context.",
    reads=("full_attention_interval", "nextn_predict_layers"),
    fixed={"attention.causal": (True,)},
)


class Model(qwen3next.Model):
    """Qwen 3.5. `vision` is an image encoder from a `projector` or from the file itself."""

    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file)
        self.vision = read_vision(file, projector, self.config.hidden_size, WITH_COORDINATES)
        if self.vision is None:
            return
        axes = read_axes(file, self.config.rope.dims // 2, [11, 11, 10], interleaved=True)
        self._rope = replace(self._rope, axes=axes)
        check_deep(file, projector, self.vision, self.config.hidden_size, range(1))
