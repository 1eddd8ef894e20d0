"""The rows of an image in a grid of tiles: the patches that show the image, and their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.model.projectors.grid import grid_rows
from tests.backends import USUAL
from tests.image.pictures import png
from tests.rewriting import all_tensors
from tests.vision_oracle import BoundEncoder

DATA = Path(__file__).parents[1] / "data" / "tiled"


def test_a_tile_that_is_all_border_has_no_rows() -> None:
    """A square in the middle of three tiles: the other tiles show nothing, and lines end after the middle."""
    kept, order = grid_rows((50, 50), (1, 3), 2, has_ends=True)
    assert [tile.tolist() for tile in kept] == [[], [0, 1, 2, 3], []]
    assert order.tolist() == [0, 1, 2, 3, 5, 6, 4, 7, 8, 4]


def test_lines_go_through_tiles_that_are_beside_each_other() -> None:
    kept, order = grid_rows((40, 80), (1, 2), 2, has_ends=False)
    assert [len(tile) for tile in kept] == [4, 4]
    assert order.tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 6, 7, 10, 11]


def test_every_row_that_is_made_has_a_place() -> None:
    for size in ((20, 90), (90, 20), (33, 35)):
        kept, order = grid_rows(size, (2, 3), 3, has_ends=True)
        assert np.unique(order).tolist() == [*range(9 + 1 + sum(map(len, kept)))]


def test_a_line_of_pixels_has_no_rows_but_those_of_the_square(tmp_path: Path) -> None:
    convert(DATA / "llava-next", tmp_path / "whole.gguf", "F32")
    with open_gguf(tmp_path / "whole.gguf") as file:
        metadata = {**file.metadata, "llama.vision.image_grid_pinpoints": [44, 44]}
        write_gguf(tmp_path / "square.gguf", metadata, all_tensors(file))
    encoder = BoundEncoder(tmp_path / "square.gguf", USUAL)
    image = encoder.vision.read_image(png(1, 60))
    assert (len(image.tiles), image.layout) == (1, (9,))
    assert encoder.rows(image).shape == (9, 60)
