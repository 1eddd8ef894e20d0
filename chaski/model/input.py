"""The inputs of a model while it records its graph: symbols for the arrays of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor

__all__ = ["ImageRows", "Inputs", "output_rows"]


@dataclass(frozen=True, slots=True)
class ImageRows:
    """`rows` (n, size) of images and the `places` (n,) of the tokens that they stand for; n is 0 for text."""

    rows: Tensor
    places: Tensor


@dataclass(frozen=True, slots=True)
class Inputs:
    """The tokens of a batch. `outputs` indexes the rows to keep at the end.

    `images` is there for models that see, and `types` (tokens,) for those that tell two texts apart: 0 in the
    first, 1 in the second. `coordinates` (tokens, 3) are there where rows of images stand in a grid, see
    `EncoderShape.has_grid`.
    """

    tokens: Tensor
    positions: Tensor
    outputs: Tensor
    images: ImageRows | None = None
    types: Tensor | None = None
    coordinates: Tensor | None = None

    def rope_table(self, rope: Rope) -> Tensor:
        """The table of a rope that turns tokens by their coordinates, where they have some.

        Else it turns by positions, which are the same numbers in a text.
        """
        return ops.rope_table(self.positions if self.coordinates is None else self.coordinates, rope)

    def with_images(self, x: Tensor) -> Tensor:
        """The embeddings `x` (tokens, size), but the rows of images at their places."""
        part = self._part_of_images(x, 0)
        return x if self.images is None or part is None else ops.scatter(x, part, self.images.places)

    def with_deep_images(self, x: Tensor, layer: int) -> Tensor:
        """The output of a layer, with parts of the rows of images added at their places.

        Some encoders make rows that are several times as long as an embedding: behind the embedding they have
        a part for each of the first layers (deepstack, Meng et al. 2024, arXiv 2406.04334). There `x` has all
        tokens.
        """
        part = self._part_of_images(x, layer + 1)
        if self.images is None or part is None:
            return x
        places = self.images.places
        return ops.scatter(x, x.rows(places) + part, places)

    def _part_of_images(self, x: Tensor, index: int) -> Tensor | None:
        """A part of the rows of images, each as long as a row of `x`; None behind the last one."""
        if self.images is None:
            return None
        whole, size = self.images.rows.shape[1], x.shape[1]
        assert isinstance(whole, int)
        assert isinstance(size, int)
        if whole == size and not index:
            return self.images.rows
        return ops.slice(self.images.rows, index * size, size) if (index + 1) * size <= whole else None


def output_rows(outputs: Tensor | None, *states: Tensor) -> tuple[Tensor, ...]:
    """The rows of `states` that need outputs: the last layer goes on with these only. None is all rows."""
    return states if outputs is None else tuple(state.rows(outputs) for state in states)
