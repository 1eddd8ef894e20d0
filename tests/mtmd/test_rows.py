"""Rows of a picture against llama.cpp's mtmd on the same projector; needs xllamacpp, so run it by hand.

Both read float32 weights. Pictures need no resizing, since other tests compare it. If only one engine adds
the whole picture in a smaller square, those rows are not compared.

llama.cpp rounds the GELU of some encoders with a half-precision table, and uses tanh where transformers uses
the exact function, so rows differ in the third digit. For other differences, `theirs` changes llama.cpp's
file so that it computes the same, which proves that there are no further differences: see "Encoders of
images next to llama.cpp" in docs/decisions.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from chaski.convert.convert import convert
from chaski.model.multimodal import Image
from tests import deepseek_ocr
from tests.image.pictures import picture, png
from tests.mtmd.files import Projector, text_and_projector
from tests.vision_oracle import F32, BoundEncoder

pytest.importorskip("xllamacpp")
pytestmark = pytest.mark.oracle

NEAR = 0.01
_PLACES = "v.position_embd.weight"
_SIDE = 70

Pairs = Iterable[tuple[F32, F32]]
Rows = list[F32]


def _as_it_is(projector: Projector) -> None:
    pass


def _behind_the_class(projector: Projector) -> None:
    """Move the class: llama.cpp puts its row after the patches, and its position first."""
    projector.tensors[_PLACES] = np.roll(projector.tensors[_PLACES], -1, axis=-2)


def _norms_of_the_300m(projector: Projector) -> None:
    """Change the norms: llama.cpp knows those of the 6B, which the tiny model has, only by the 6B's sizes."""
    tensors, rng = projector.tensors, np.random.default_rng(1)
    for name in [name for name in tensors if "attn_q_norm" in name or "attn_k_norm" in name]:
        del tensors[name]
    for name in [name for name in tensors if name.endswith(("ln1.weight", "ln2.weight"))]:
        size = len(tensors[name])
        tensors[name.replace("weight", "bias")] = rng.normal(0, 0.2, size).astype(np.float32)


def _usual_rope(projector: Projector) -> None:
    """Change the rope base, which llama.cpp does not read."""
    projector.metadata["clip.vision.rope.freq_base"] = 10000.0


def _many_places(projector: Projector) -> None:
    """Enlarge the position table to 70 by 70, which llama.cpp assumes."""
    size = projector.tensors[_PLACES].shape[1]
    table = np.random.default_rng(1).normal(0, 0.4, (_SIDE**2, size))
    projector.tensors[_PLACES] = table.astype(np.float32)


def _all(own: Rows, theirs: Rows) -> Pairs:
    return zip(own, theirs, strict=True)


def _but_the_first_patch(own: Rows, theirs: Rows) -> Pairs:
    """Select the rows: llama.cpp omits the first patch, and has the class after the last one."""
    return ((rows[1:], other[:-1]) for rows, other in zip(own, theirs, strict=True))


def _tiles(own: Rows, theirs: Rows) -> Pairs:
    """Select the tiles: the whole picture is first here and last there, with different resizing."""
    return zip(own[1:], theirs[:-1], strict=True)


def _tiles_but_the_first_patch(own: Rows, theirs: Rows) -> Pairs:
    return _but_the_first_patch(own[1:], theirs[:-1])


def _slices(own: Rows, theirs: Rows) -> Pairs:
    return zip(own[1:], theirs[1:], strict=True)


def _but_the_breaks(own: Rows, theirs: Rows) -> Pairs:
    """Remove llama.cpp's last row of each line, a token embedding that is in the prompt here."""
    for rows, other in zip(own, theirs, strict=True):
        lines = 1 + len(other) - len(rows)
        ends = np.arange(1, lines) * (len(rows) // lines + 1) - 1
        yield rows, np.delete(other, ends, axis=0)


def _column_by_column(own: Rows, theirs: Rows) -> Pairs:
    for rows, other in zip(own, theirs, strict=True):
        side = round(len(rows) ** 0.5)
        yield rows.reshape(side, side, -1).swapaxes(0, 1).reshape(other.shape), other


@dataclass(frozen=True)
class Case:
    """A tiny model and the size of a picture.

    `both` changes the files of both engines, `theirs` those of llama.cpp. `pairs`: the rows that must match.
    `bounds`: the least and the most rows of a picture, which llama.cpp does not read from the file.
    """

    name: str
    size: tuple[int, int]
    both: Callable[[Projector], None] = _as_it_is
    theirs: Callable[[Projector], None] = _as_it_is
    pairs: Callable[[Rows, Rows], Pairs] = _all
    bounds: tuple[int, int] | None = None


CASES = [
    Case("gemma3", (32, 32)),
    Case("mistral3", (48, 64), both=_usual_rope, pairs=_but_the_breaks, bounds=(1, 64)),
    Case("qwen2vl", (80, 96), bounds=(4, 48)),
    Case("qwen25vl", (160, 48), bounds=(4, 48)),
    Case("qwen3vl", (80, 96), bounds=(4, 48)),
    Case("qwen3vlmoe", (80, 96), bounds=(4, 48)),
    Case("qwen35", (80, 96), bounds=(4, 48)),
    Case("qwen35moe", (80, 96), bounds=(4, 48)),
    Case("llava", (28, 28), theirs=_behind_the_class, pairs=_but_the_first_patch),
    Case("llava-next", (22, 44), theirs=_behind_the_class, pairs=_tiles_but_the_first_patch),
    Case("granite-vision", (22, 44), pairs=_tiles),
    Case("idefics3", (50, 25)),
    Case("internvl", (24, 24), both=_norms_of_the_300m, theirs=_behind_the_class),
    Case("lfm2-vl", (16, 32), bounds=(4, 9)),
    Case("llama4", (24, 24), both=_usual_rope, pairs=_column_by_column),
    Case("minicpmv", (24, 24), both=_many_places),
    Case("minicpmv", (24, 48), both=_many_places, pairs=_slices),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.size[0]}x{case.size[1]}")
def test_rows_are_those_of_llama_cpp(case: Case, tmp_path: Path) -> None:
    text, projector = text_and_projector(case.name, tmp_path)
    case.both(projector)
    own_file = projector.write(tmp_path / "own.gguf")
    changed = deepcopy(projector)
    case.theirs(changed)
    theirs = _rows_of_llama_cpp(changed.write(tmp_path / "theirs.gguf"), text, case, tmp_path)
    encoder = BoundEncoder(text, "reference", own_file)
    image = encoder.vision.read_image(png(*case.size))
    own = [encoder.rows(Image.of_tiles([tile], (tile.num_rows,))) for tile in image.tiles]
    pairs = list(case.pairs(own, theirs))
    assert pairs
    for rows, other in pairs:
        assert rows.std() > 0.3
        np.testing.assert_allclose(rows, other, rtol=0, atol=NEAR)


def test_the_whole_picture_of_deepseek_ocr(tmp_path: Path) -> None:
    """Tiles are not compared: llama.cpp resizes their position tables without antialiasing."""
    folder = deepseek_ocr.checkpoint(tmp_path / "in", deepseek_ocr.FULL)
    text, projector = tmp_path / "text.gguf", tmp_path / "mmproj.gguf"
    convert(folder, text, "F32", projector=projector)
    case = Case("deepseek-ocr", (1024, 1024))
    *_, theirs = _rows_of_llama_cpp(projector, text, case, tmp_path)
    encoder = BoundEncoder(text, "cpu", projector)
    whole = encoder.vision.read_image(png(*case.size)).tiles[0]
    own = encoder.rows(Image.of_tiles([whole], (whole.num_rows,)))
    lines, squares = theirs[:-1].reshape(16, 17, -1), own[:256].reshape(16, 16, -1)
    assert squares.std() > 0.3
    np.testing.assert_allclose(squares, lines[:, :16], rtol=0, atol=NEAR)
    np.testing.assert_array_equal(lines[:, 16], np.tile(own[256], (16, 1)))
    np.testing.assert_array_equal(theirs[-1], own[257])


def _rows_of_llama_cpp(projector: Path, text: Path, case: Case, folder: Path) -> Rows:
    np.save(folder / "pixels.npy", picture(*case.size))
    target = folder / "rows.npz"
    paths = [str(path) for path in (projector, text, folder / "pixels.npy", target)]
    bounds = [] if case.bounds is None else [str(bound) for bound in case.bounds]
    command = [sys.executable, "-m", "tests.mtmd.encode", *paths, *bounds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(target) as arrays:
        return [np.asarray(arrays[name]) for name in arrays]
