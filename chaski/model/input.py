"""The inputs of a model while it records its graph: symbols for the arrays of a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import Module, output_rows

__all__ = ["HiddenStates", "ImageRows", "Inputs"]


class ImageRows(Struct, frozen=True):
    """Image `rows` (n, size), and the `places` (n,) of the tokens that they replace; n is 0 for text."""

    rows: Tensor
    places: Tensor


class HiddenStates:
    """The hidden states that an attached draft reads, noted while its target records a batch.

    `layers` are the numbers of the layers whose inputs are kept, for all tokens. The number after that of the
    last layer stands for its output. `last` is that output for the rows that need logits.
    """

    def __init__(self, layers: Collection[int]) -> None:
        self._layers = frozenset(layers)
        self._kept: dict[int, Tensor] = {}
        self._num_layers = 0
        self.last: Tensor | None = None

    def __getitem__(self, layer: int) -> Tensor:
        return self._kept[layer]

    @property
    def missing(self) -> Sequence[int]:
        """List the layers whose states the target did not provide."""
        return sorted(self._layers - self._kept.keys())

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the target; 0 if it provides no states at all."""
        return self._num_layers

    @property
    def is_last_kept(self) -> bool:
        """Return whether the last layer computes all tokens."""
        return self._num_layers in self._layers

    def enter(self, layer: int, num_layers: int, x: Tensor) -> None:
        self._num_layers = num_layers
        if layer in self._layers:
            self._kept[layer] = x

    def leave(self, x: Tensor, outputs: Tensor) -> Tensor:
        if self.is_last_kept:
            self._kept[self._num_layers] = x
            (x,) = output_rows(outputs, x)
        self.last = x
        return x


class Inputs(Struct, frozen=True):
    """The tokens of a batch. `outputs` indexes the rows to keep at the end.

    `images` exist for models that see. `types` (tokens,) exist for models that distinguish two texts: 0 for
    the first, 1 for the second. `coordinates` (tokens, 3) exist if image rows form a grid, see
    `EncoderShape.has_grid`. `hidden` collects the states that an attached draft reads.
    """

    tokens: Tensor
    positions: Tensor
    outputs: Tensor
    images: ImageRows | None = None
    types: Tensor | None = None
    coordinates: Tensor | None = None
    hidden: HiddenStates | None = None

    def enter(self, layer: Module, layers: Sequence[Module], x: Tensor) -> Tensor | None:
        """Return the rows that `layer` keeps after its attention, and note its input `x` for a draft.

        All layers keep all rows (None), except the last one, which keeps the rows that need outputs. If a
        draft reads the output of the last layer, that layer keeps all rows, too, and `leave` drops them.
        """
        if self.hidden is not None:
            self.hidden.enter(layers.index(layer), len(layers), x)
            if self.hidden.is_last_kept:
                return None
        return self.outputs if layer is layers[-1] else None

    def leave(self, x: Tensor) -> Tensor:
        """Return the rows of the last layer's output `x` that need outputs, and note it for a draft."""
        return x if self.hidden is None else self.hidden.leave(x, self.outputs)

    def rope_table(self, rope: Rope) -> Tensor:
        """Return the table of a rope, which rotates tokens by their coordinates if they have any.

        Otherwise it rotates by positions, which equal the coordinates of text. A rope without axes, as in
        drafts of such models, rotates by the time coordinate.
        """
        if self.coordinates is not None and rope.axes is None:
            rope = replace(rope, axes=(0,) * len(rope.frequencies))
        return ops.rope_table(self.positions if self.coordinates is None else self.coordinates, rope)

    def with_images(self, x: Tensor) -> Tensor:
        """Return the embeddings `x` (tokens, size) with the rows of images at their places."""
        part = self._part_of_images(x, 0)
        return x if self.images is None or part is None else ops.scatter(x, part, self.images.places)

    def with_deep_images(self, x: Tensor, layer: int) -> Tensor:
        """Return the output of a layer, with parts of the image rows added at their places.

        Some encoders make rows several times as long as an embedding: after the embedding comes a part for
        each of the first layers (deepstack, Meng et al. 2024, arXiv 2406.04334). In these layers `x` contains
        all tokens.
        """
        part = self._part_of_images(x, layer + 1)
        if self.images is None or part is None:
            return x
        places = self.images.places
        return ops.scatter(x, x.rows(places) + part, places)

    def _part_of_images(self, x: Tensor, index: int) -> Tensor | None:
        """Return part `index` of the image rows, as long as a row of `x`; None after the last part."""
        if self.images is None:
            return None
        whole, size = self.images.rows.shape[1], x.shape[1]
        assert isinstance(whole, int)
        assert isinstance(size, int)
        if whole == size and not index:
            return self.images.rows
        return ops.slice(self.images.rows, index * size, size) if (index + 1) * size <= whole else None
