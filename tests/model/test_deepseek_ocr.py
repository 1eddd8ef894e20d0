"""DeepSeek-OCR and DeepSeek-OCR 2 with pictures against transformers' parts, from a checkpoint to answers.

tools/fixtures/make_deepseek_ocr.py makes the expected numbers.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from tests import deepseek_ocr
from tests.deepseek_ocr import NAMES, PROMPTS, SIZES, STEP, checkpoint, expected
from tests.image.pictures import png
from tests.projector_files import assert_described
from tests.rewriting import all_tensors
from tests.tiers import long_after
from tests.vision_oracle import BACKENDS, BoundEncoder, answers_at_once, quantized, said


@pytest.fixture(scope="module", params=long_after(1, NAMES))
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the checkpoint, its file, and the two files with the encoder apart."""
    folder = checkpoint(tmp_path_factory.mktemp(name), name)
    convert(folder, folder / "whole.gguf", "F32")
    convert(folder, folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    return folder


@cache
def given(prompt: str) -> tuple[str, list[bytes]]:
    """Return a prompt's text and its pictures."""
    text, sizes = deepseek_ocr.given(prompt)
    return text, [png(*size) for size in sizes]


def logits(path: Path, prompt: str, **options: Any) -> NDArray[np.float32]:
    with chaski.load(path, **{"context": 192, "threads": 1, **options}) as model:
        return np.asarray(model.logits(*given(prompt)))


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
def test_rows_are_those_of_the_published_encoder(
    name: str, backend: str, tolerance: float, folder: Path
) -> None:
    bound = BoundEncoder(folder / "whole.gguf", backend)
    for each, size in SIZES.items():
        wanted = expected()[f"{name}/{each}.rows"]
        found = bound.rows(bound.vision.read_image(png(*size)))
        assert wanted.std() > 0.1
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)


def test_ids_logits_and_answers_are_those_of_the_published_model(name: str, folder: Path) -> None:
    with chaski.load(folder / "whole.gguf", context=192, kv_type="f32", threads=1) as model:
        for prompt in PROMPTS:
            wanted = {key: expected()[f"{name}/{prompt}.{key}"] for key in ("ids", "logits", "greedy")}
            ids = np.array(model.tokenize(given(prompt)[0], images=given(prompt)[1]))
            np.testing.assert_array_equal(np.maximum(ids, -1), wanted["ids"])
            found = np.asarray(model.logits(*given(prompt)))[::STEP]
            assert wanted["logits"].std() > 0.3
            np.testing.assert_allclose(found, wanted["logits"], rtol=0, atol=5e-4, err_msg=prompt)
            answer = model.generate(*given(prompt), num_predict=8, temperature=0, ignore_eos=True)
            assert list(answer.token_ids) == wanted["greedy"].tolist(), prompt


def test_the_projector_is_that_of_llama_cpps_converter(name: str, folder: Path) -> None:
    wanted = json.loads(str(expected()[f"{name}/projector"]))
    wanted["keys"].pop("clip.vision.projector.scale_factor", None)  # only of models of other sizes
    assert_described(folder / "mmproj.gguf", wanted)


def test_two_files_are_as_one_and_as_text_alone(folder: Path) -> None:
    whole = logits(folder / "whole.gguf", "two")
    found = logits(folder / "text.gguf", "two", projector=folder / "mmproj.gguf")
    np.testing.assert_array_equal(found, whole)
    text = logits(folder / "whole.gguf", "text")
    np.testing.assert_array_equal(logits(folder / "text.gguf", "text"), text)


def test_bits_do_not_depend_on_others(name: str, folder: Path, tmp_path: Path) -> None:
    options: Any = {"num_predict": 4, "temperature": 0, "logprobs": True}
    paths = [folder / "whole.gguf"]
    if name != "odd":  # its keys have 47 elements, and those of quantized files come in pairs
        paths.append(quantized(paths[0], tmp_path / "quantized.gguf"))
    for path in paths:
        whole = logits(path, "two")
        np.testing.assert_array_equal(logits(path, "two", num_batch=9, threads=2), whole)
    with chaski.load(path, context=192, parallel=1, prompt_cache=False) as model:
        alone = [said(model.generate(*given(prompt), **options)) for prompt in PROMPTS]
    with chaski.load(path, context=192, parallel=3, num_batch=50) as model:
        assert answers_at_once(model, map(given, PROMPTS), **options) == alone
        assert answers_at_once(model, map(given, PROMPTS), **options) == alone


def without(source: Path, target: Path, tensor: str) -> Path:
    """Write a projector without a tensor."""
    with open_gguf(source) as file:
        tensors = all_tensors(file)
        del tensors[tensor]
        write_gguf(target, dict(file.metadata), tensors)
    return target


def rewritten(source: Path, target: Path, **keys: int) -> Path:
    """Write a projector with other numbers of keys, whose dots are underscores here."""
    with open_gguf(source) as file:
        changed = {f"clip.vision.{key.replace('__', '.')}": value for key, value in keys.items()}
        assert changed.keys() <= file.metadata.keys()
        write_gguf(target, {**file.metadata, **changed}, all_tensors(file))
    return target


def refused(folder: Path, projector: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        chaski.load(folder / "text.gguf", projector=projector)


def test_projectors_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    source, target = folder / "mmproj.gguf", tmp_path / "other.gguf"
    name = "v.sam.net_3.weight"
    refused(folder, without(source, target, name), r"tensor v\.sam\.net_3\.weight is missing")
    refused(
        folder, rewritten(source, target, window_size=3), r"pos_h\.weight has \d+ distances; windows of 3"
    )
    refused(folder, rewritten(source, target, sam__head_count=0), "elements in 0 heads")
    refused(folder, rewritten(source, target, preproc_min_tiles=12), r"is cut into 12 to \d tiles")
    refused(folder, rewritten(source, target, embedding_length=8), "of 8 elements")


def test_queries_that_do_not_fit(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "in", "second")
    convert(folder, folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    source, target = folder / "mmproj.gguf", tmp_path / "other.gguf"
    refused(folder, without(source, target, "v.resample_query_768.weight"), "query_768.weight is missing")
    refused(folder, rewritten(source, target, attention__head_count_kv=3), "cannot share 3 keys")
