"""Processors against Hugging Face's, number by number: see tools/fixtures/make_image_processors.py."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from chaski.errors import ImageError
from chaski.image import (
    CLIP,
    HALF,
    PatchLimits,
    centered,
    in_aspect_tiles,
    in_grid,
    in_patches,
    in_rounded_tiles,
    in_slices,
    in_split_tiles,
    in_tiles,
    most_padded_squares,
    on_padded_squares,
    on_square,
    patches,
    squared,
    stretched_tiles,
)
from tests.image.pictures import picture

with np.load(Path(__file__).parent.parent / "data" / "images" / "processors.npz") as file:
    EXPECTED = {key: file[key] for key in file if not key.startswith("grid/")}
    GRIDS = {key.removeprefix("grid/"): file[key] for key in file if key.startswith("grid/")}

# In the order of Hugging Face's ids, from 1.
FOUR_TILES = [grid for grid in product(range(1, 5), range(1, 5)) if grid[0] * grid[1] <= 4]


def processor(name: str, edge: int, patch: int) -> Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]:
    processors: dict[str, Callable[[npt.NDArray[np.uint8]], npt.NDArray[np.float32]]] = {
        "squared-bilinear": partial(squared, edge=edge, filter="bilinear", normal=HALF),
        "squared-bicubic": partial(squared, edge=edge, filter="bicubic", normal=HALF),
        "centered": partial(centered, edge=edge, normal=CLIP),
        "centered-padded": partial(centered, edge=edge, normal=CLIP, is_padded=True),
        "in_patches": partial(in_patches, longest_edge=edge * 5 // 2, patch=patch, normal=CLIP),
        "in_aspect_tiles": lambda pixels: in_aspect_tiles(pixels, edge, range(1, 8), CLIP),
        "in_grid": lambda pixels: in_grid(
            pixels, edge, [(edge, 2 * edge), (2 * edge, 2 * edge), (3 * edge, edge)], CLIP
        )[0],
        "in_rounded_tiles": lambda pixels: in_rounded_tiles(pixels, edge, 7, HALF)[0],
        "in_slices": lambda pixels: np.concatenate(
            [each.ravel() for each in in_slices(pixels, edge, patch, 5, HALF)[0]]
        ),
        "in_split_tiles": lambda pixels: in_split_tiles(pixels, edge, 3 * edge, HALF)[0],
        "in_tiles": lambda pixels: in_tiles(pixels, edge, 4, CLIP)[0],
    }
    return processors[name]


@pytest.mark.parametrize("key", EXPECTED)
def test_the_same_numbers(key: str) -> None:
    name, edge, patch, size = key.split("/")
    values = processor(name, int(edge), int(patch))(picture(*map(int, size.split("x"))))
    expected = EXPECTED[key]
    if expected.dtype == np.float32:
        np.testing.assert_array_equal(values, expected)
    else:
        shape, digest = expected
        assert str(values.shape) == shape
        assert hashlib.sha256(values.tobytes()).hexdigest() == digest


@pytest.mark.parametrize("key", GRIDS)
def test_the_same_grid_of_tiles(key: str) -> None:
    _, edge, _, size = key.split("/")
    _, grid = in_tiles(picture(*map(int, size.split("x"))), int(edge), 4, CLIP)
    assert FOUR_TILES.index(grid) + 1 == GRIDS[key]


def test_pixtral_keeps_one_row_of_a_line() -> None:
    """The proportions leave less than a pixel; Hugging Face's processor fails in this case."""
    assert in_patches(picture(1, 500), 64, 8, CLIP).shape == (8, 64, 3)


def test_proportions_that_would_make_it_huge_are_refused() -> None:
    with pytest.raises(ImageError, match=r"would become 31360000 x 560 pixels.* too unequal"):
        centered(np.zeros((1, 56000, 3), np.uint8), 560, CLIP)


def test_patches_are_laid_out_as_kernels() -> None:
    values = in_patches(picture(24, 16), 64, 8, CLIP)
    cut = patches(values, 8)
    assert cut.shape == (3, 2, 3 * 8 * 8)
    kernel = np.random.default_rng(1).normal(size=(5, 3, 8, 8))
    convolved = np.einsum("oiyx,yxi->o", kernel, values[8:16, 0:8].astype(float))
    np.testing.assert_allclose(kernel.reshape(5, -1) @ cut[1, 0], convolved)


@pytest.mark.parametrize(("count", "side"), [(20, 9), (60, 40), (1, 5), (400, 8)])
def test_pictures_need_no_more_padded_squares_than_foreseen(count: int, side: int) -> None:
    most = most_padded_squares(2, count, side)
    for height, width in product(range(1, 60, 7), range(1, 120, 13)):
        limits = PatchLimits(count, side, 1 << 20)
        values = on_padded_squares(np.zeros((height, width, 3), np.uint8), 3, 2, limits, HALF)
        assert values.shape[0] // 6 * (values.shape[1] // 6) <= most


def test_a_picture_shrinks_until_its_padded_squares_are_few_enough() -> None:
    few = on_padded_squares(picture(50, 70), 4, 2, PatchLimits(160, 512, 7), HALF)
    assert few.shape == (16, 24, 3)
    assert on_padded_squares(picture(90, 3), 4, 2, PatchLimits(160, 512, 1), HALF).shape == (8, 8, 3)


def test_the_rest_of_a_padded_square_is_black() -> None:
    whole = on_padded_squares(picture(10, 13), 4, 2, PatchLimits(160, 512, 90), HALF)
    assert whole.shape == (16, 16, 3)
    np.testing.assert_array_equal(whole[:10, :13], (picture(10, 13).astype(np.float32) / 255 - 0.5) / 0.5)
    assert (whole[10:] == -1).all()
    assert (whole[:, 13:] == -1).all()


@pytest.mark.parametrize("size", [(50, 71), (71, 50), (64, 64), (1, 90), (3, 2), (131, 90)])
def test_a_picture_in_the_middle_of_a_square(size: tuple[int, int]) -> None:
    wanted = ImageOps.pad(Image.fromarray(picture(*size)), (64, 64), color=HALF.color)
    np.testing.assert_array_equal(on_square(picture(*size), 64, HALF.color), np.asarray(wanted))


def test_tiles_of_large_pictures_alone() -> None:
    assert stretched_tiles(picture(64, 20), 64, range(2, 10), HALF)[1] == (0, 0)
    for size, grid in (((65, 60), (2, 2)), ((20, 150), (1, 7)), ((200, 201), (3, 3)), ((300, 70), (4, 1))):
        cut, found = stretched_tiles(picture(*size), 64, range(2, 10), HALF)
        assert found == grid
        assert cut.shape == (grid[0] * grid[1], 64, 64, 3)
