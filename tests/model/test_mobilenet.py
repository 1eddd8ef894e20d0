"""Gemma 3n with images against timm and transformers, from a checkpoint to answers.

tools/fixtures/make_mobilenet.py makes the expected numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from tests.image.pictures import png
from tests.mobilenet import END, NAMES, PROMPTS, SIZES, SOFT, checkpoint, expected
from tests.projector_files import assert_described
from tests.rewriting import all_tensors
from tests.vision_oracle import BACKENDS, BoundEncoder


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp(name), name)


def written(folder: Path, name: str) -> Path:
    """Write the checkpoint, its file, and two files, with the encoder in the second."""
    checkpoint(folder, expected(name)["about"])
    convert(folder, folder / "whole.gguf", "F32")
    convert(folder, folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    return folder


@cache
def images(prompt: str) -> list[bytes]:
    return [png(*SIZES[each]) for each in PROMPTS[prompt][1]]


def logits(path: Path, prompt: str, **options: Any) -> NDArray[np.float32]:
    with chaski.load(path, **{"context": 256, "threads": 1, **options}) as model:
        return np.asarray(model.logits(PROMPTS[prompt][0], images(prompt)))


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
def test_rows_equal_those_of_transformers(name: str, backend: str, tolerance: float, folder: Path) -> None:
    bound = BoundEncoder(folder / "whole.gguf", backend)
    for each, size in SIZES.items():
        wanted = expected(name)[f"{each}.rows"]
        rows = bound.rows(bound.vision.read_image(png(*size)))
        assert wanted.std() > 0.3
        np.testing.assert_allclose(rows[: len(wanted)], wanted, rtol=0, atol=tolerance)
        assert len(rows) == len(wanted) + 1  # the token after the image is the last row


def test_ids_logits_and_answers_equal_those_of_transformers(name: str, folder: Path) -> None:
    with chaski.load(folder / "whole.gguf", context=256, kv_type="f32", threads=1) as model:
        for prompt, (text, _) in PROMPTS.items():
            wanted = {key: expected(name)[f"{prompt}.{key}"] for key in ("ids", "places", "logits", "greedy")}
            ids = np.array(model.tokenize(text, images=images(prompt)))
            of_images = np.isin(wanted["ids"], (SOFT, END))
            np.testing.assert_array_equal(ids < 0, of_images)
            np.testing.assert_array_equal(ids[~of_images], wanted["ids"][~of_images])
            found = np.asarray(model.logits(text, images(prompt)))[wanted["places"]]
            assert wanted["logits"].std() > 0.3
            np.testing.assert_allclose(found, wanted["logits"], rtol=0, atol=5e-4, err_msg=prompt)
            answer = model.generate(text, images(prompt), num_predict=12, temperature=0, ignore_eos=True)
            assert list(answer.token_ids) == wanted["greedy"].tolist()


def test_the_projector_is_that_of_llama_cpps_converter(name: str, folder: Path) -> None:
    assert_described(folder / "mmproj.gguf", expected(name)["about"]["projector"])


def projector(
    folder: Path,
    target: Path,
    metadata: Mapping[str, Any] = MappingProxyType({}),
    without: tuple[str, ...] = (),
) -> Path:
    """Write the projector, without some tensors. The published one has more than 128 tensors."""
    with open_gguf(folder / "mmproj.gguf") as file:
        tensors = {name: info for name, info in all_tensors(file).items() if not name.startswith(without)}
        # A published file contains a sound encoder, too.
        tensors |= dict.fromkeys(("a.position_embd", "mm.a.fc.weight"), tensors["v.conv_stem.bn.weight"])
        write_gguf(target, {**file.metadata, "clip.vision.block_count": 4, **metadata}, tensors)
    return target


def test_two_files_are_as_one(folder: Path, tmp_path: Path) -> None:
    path = projector(folder, tmp_path / "projector.gguf")
    found = logits(folder / "text.gguf", "two", projector=path)
    np.testing.assert_array_equal(found, logits(folder / "whole.gguf", "two"))


def test_a_projector_without_the_token_after_an_image(folder: Path, tmp_path: Path) -> None:
    path = projector(folder, tmp_path / "a.gguf", without=("mm.embedding", "mm.hard_emb_norm"))
    with chaski.load(folder / "text.gguf", projector=path, context=256) as model:
        ids = model.tokenize("[img-0]", images=images("two")[:1])
        assert END in ids
        assert len(model.logits("[img-0]", images("two")[:1])) == len(ids)


@pytest.mark.parametrize(
    ("metadata", "without", "error", "message"),
    [
        ({"clip.vision.image_size": 0}, "-", ModelError, "image_size is 0; it must be from 1"),
        ({"clip.vision.patch_size": 97}, "-", ModelError, "97 leaves no rows of an image of 96 pixels"),
        (
            {"clip.vision.image_size": 176},
            "-",
            UnsupportedError,
            "11 x 11 places cannot be averaged to 2 x 2",
        ),
        ({}, "v.blk.1.", ModelError, "two stages or more, not 1"),
        ({}, "v.blk.0.0.bn", ModelError, "v.blk.0.0.bn1.weight.*is missing"),
        ({}, "v.blk.2.2.attn.value.down_conv", ModelError, "not those of a block of MobileNet V5"),
        ({}, "v.msfa.norm", ModelError, "tensor v.msfa.norm.weight is missing"),
        ({"clip.vision.projector_type": "gemma3"}, "-", UnsupportedError, "supported: gemma3nv"),
    ],
)
def test_files_that_cannot_be(
    metadata: dict[str, Any], without: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "in", "published")
    path = projector(folder, tmp_path / "other.gguf", metadata, (without,))
    with pytest.raises(error, match=message):
        chaski.load(folder / "text.gguf", projector=path)
