"""Gemma 3's image encoder: SigLIP (Zhai et al. 2023), then averages over squares of patches, a projector."""

from __future__ import annotations

from math import isqrt

from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.image import Values
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Dim, Graph, Tensor
from chaski.ml.nn import Module, RMSNorm, TransposedLinear
from chaski.model.arch.gemma3.image import patches_by_squares, read_square
from chaski.model.config import patches_a_side
from chaski.model.multimodal import EncoderShape, Image
from chaski.model.projectors.siglip import SigLIPConfig, Tower
from chaski.model.projectors.vit import square_order


def _square(file: GGUFFile, side: int) -> int:
    """Return the side of the squares that are averaged.

    A projector file stores it; for a model file it follows from the number of rows per image.
    Raises ModelError for squares that do not fit the image.
    """
    if file.architecture == "clip":
        kind = file.get("clip.vision.projector_type", str, file.get("clip.projector_type", str, "gemma3"))
        if kind != "gemma3":
            raise UnsupportedError(f"{file.path}: a projector of type {kind!r} does not fit Gemma 3")
        square = file.get("clip.vision.projector.scale_factor", int, 4)
    else:
        square = side // isqrt(file.get(f"{file.architecture}.mm.tokens_per_image", int, 256))
    if square < 1 or side % square:
        raise ModelError(
            f"{file.path}: {side} x {side} patches cannot be split into {square} x {square} squares"
        )
    return square


class Projector(Module):
    def __init__(self, config: SigLIPConfig, row_size: int) -> None:
        self.soft_emb_norm = RMSNorm(config.hidden_size, config.eps)
        self.input_projection = TransposedLinear(config.hidden_size, row_size)

    def __call__(self, x: Tensor) -> Tensor:
        return self.input_projection(self.soft_emb_norm(x))


class Vision(Module):
    """The image encoder. Patches come square by square, so averaging a square averages consecutive rows."""

    inline = True
    is_bidirectional = True

    def __init__(self, file: GGUFFile, row_size: int) -> None:
        self._config = config = SigLIPConfig.read(file)
        self._square = _square(file, patches_a_side(file, config.edge, config.patch_size))
        self._num_rows = (config.side // self._square) ** 2
        self.shape = EncoderShape(config.num_patches, self._num_rows, row_size, config.heads)
        self.v = Tower(config, config.num_patches)
        self.mm = Projector(config, row_size)

    def read_image(self, data: bytes) -> Image:
        return self.image(read_square(data, self._config.edge, self._config.normal))

    def image(self, pixels: Values) -> Image:
        """Return normalized pixels (edge, edge, 3) in the form that the encoder takes."""
        c = self._config
        return Image(
            {
                "pixels": patches_by_squares(pixels, c.patch_size, self._square),
                "places": square_order(c.side, self._square),
            },
            self._num_rows,
            ("\n\n<start_of_image>", self._num_rows, "<end_of_image>\n\n"),
        )

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: LayerCache) -> Tensor:
        x = self.v(graph, patches, history)
        return self.mm(ops.average_rows(x, rows, self._square**2))
