"""Gemma 4's encoders against transformers: rows, logits and answers of prompts with pictures.

tools/fixtures/make_gemma4.py makes the checkpoints and the expected numbers.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError, OptionError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.image import filled
from chaski.model.arch.gemma4.image import FROM_0_TO_1
from tests.gemma4.prompts import BUDGETS, NAMES, PICTURES, PROMPTS
from tests.image.pictures import picture, png
from tests.rewriting import all_tensors
from tests.vision_oracle import BACKENDS, BoundEncoder, answers_at_once, quantized, said

DATA = Path(__file__).parents[1] / "data" / "gemma4"
GREEDY: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 6}

on_both = pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
each = pytest.mark.parametrize("name", NAMES)


@cache
def expected(name: str) -> dict[str, Any]:
    with np.load(DATA / name / "expected.npz") as arrays:
        return dict(arrays)


@cache
def pictures(prompt: str) -> list[bytes]:
    return [png(*size) for size in PROMPTS[prompt][1]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the models in one file, `NAME.gguf`, and in two, `NAME-text.gguf` and `NAME-mmproj.gguf`."""
    target = tmp_path_factory.mktemp("gemma4")
    for name in NAMES:
        convert(DATA / name, target / f"{name}.gguf", "F32")
        convert(DATA / name, target / f"{name}-text.gguf", "F32", projector=target / f"{name}-mmproj.gguf")
    return target


def logits(path: Path, prompt: str, **options: Any) -> NDArray[np.float32]:
    with chaski.load(path, **{"context": 128, "threads": 1, **options}) as model:
        return np.asarray(model.logits(PROMPTS[prompt][0], pictures(prompt)))


@on_both
@each
def test_layers_and_rows_equal_those_of_transformers(
    name: str, backend: str, tolerance: float, folder: Path
) -> None:
    encoder = BoundEncoder(folder / f"{name}.gguf", backend)
    for prompt, (_, sizes) in PROMPTS.items():
        images = [encoder.vision.read_image(data) for data in pictures(prompt)]
        if f"{prompt}.layers" in expected(name):
            image = images[0]
            order = np.lexsort((image.arrays["column"], image.arrays["row"]))
            wanted = expected(name)[f"{prompt}.layers"]
            for found, state in zip(encoder.states(image, encoder.vision.v.blk), wanted, strict=True):
                np.testing.assert_allclose(found[order], state, rtol=0, atol=tolerance)
        if sizes:
            rows = np.concatenate([encoder.rows(image) for image in images])
            assert rows.std() > 0.3
            np.testing.assert_allclose(rows, expected(name)[f"{prompt}.rows"], rtol=0, atol=tolerance)


@on_both
@each
def test_logits_equal_those_of_transformers(name: str, backend: str, tolerance: float, folder: Path) -> None:
    for prompt in PROMPTS:
        found = logits(folder / f"{name}.gguf", prompt, backend=backend, kv_type="f32")
        wanted = expected(name)[f"{prompt}.logits"]
        assert len(found) == len(expected(name)[f"{prompt}.ids"])
        assert wanted.std() > 0.3
        places = expected(name)[f"{prompt}.places"]
        np.testing.assert_allclose(found[places], wanted, rtol=0, atol=tolerance, err_msg=prompt)


@each
def test_answers_are_those_of_transformers(name: str, folder: Path) -> None:
    with chaski.load(folder / f"{name}.gguf", context=128, kv_type="f32") as model:
        for prompt, (text, _) in PROMPTS.items():
            wanted = expected(name)[f"{prompt}.answer"].tolist()
            answer = model.generate(
                text, pictures(prompt), temperature=0, num_predict=len(wanted), ignore_eos=True
            )
            assert list(answer.token_ids) == wanted, prompt


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("size", PICTURES)
def test_pictures_become_those_of_the_published_processor(budget: int, size: tuple[int, int]) -> None:
    found = filled(picture(*size), 48, budget, FROM_0_TO_1)
    digest = hashlib.sha256(found.tobytes()).hexdigest()[:16]
    wanted = json.loads((DATA / "processed.json").read_text())[f"{budget} {size[0]}x{size[1]}"]
    assert [list(found.shape), str(found.dtype), digest] == wanted


@each
def test_projectors_are_those_of_llama_cpp(name: str, folder: Path) -> None:
    """They also state settings that llama.cpp assumes for the published sizes."""
    wanted = json.loads((DATA / name / "projector.json").read_text())
    with open_gguf(folder / f"{name}-mmproj.gguf") as file:
        tensors = {
            info.name: [list(info.shape), hashlib.sha256(info.data).hexdigest()[:16]]
            for info in file.tensors.values()
        }
        found = {key: file.metadata[key] for key in wanted["metadata"]}
        more = file.metadata.keys() - found.keys()
    assert tensors == wanted["tensors"]
    for key, value in found.items():
        plain = value if isinstance(value, str) else np.asarray(value).tolist()
        assert plain == (value if isinstance(value, str) else pytest.approx(wanted["metadata"][key])), key
    assert {key for key in more if key.startswith("clip.")} <= {
        "clip.use_gelu",
        "clip.vision.image_max_pixels",
        "clip.vision.is_bidirectional",
        "clip.vision.projector.scale_factor",
    }


@each
def test_one_file_is_as_two(name: str, folder: Path) -> None:
    found = logits(folder / f"{name}-text.gguf", "two", projector=folder / f"{name}-mmproj.gguf")
    np.testing.assert_array_equal(found, logits(folder / f"{name}.gguf", "two"))


def changed(source: Path, target: Path, metadata: dict[str, Any], *left_out: str, **added: Any) -> Path:
    """Write the same file with changed metadata and tensors."""
    with open_gguf(source) as file:
        tensors: dict[str, Any] = {
            name: tensor for name, tensor in all_tensors(file).items() if not name.endswith(left_out)
        }
        tensors |= {name: (values, QuantType.F32) for name, values in added.items()}
        write_gguf(target, {**file.metadata, **metadata}, tensors)
    return target


def test_files_of_ollama_have_sounds_and_bounds_besides(folder: Path, tmp_path: Path) -> None:
    """Ollama's converter repeats all bounds in one tensor, and adds the audio encoder."""
    source = folder / "causal.gguf"
    ones = np.ones((4, 4), np.float32)
    more = {"v.clamp_data": np.ones(60, np.float32), "a.blk.0.attn_q.weight": ones, "mm.a.fc.weight": ones}
    theirs = changed(source, tmp_path / "theirs.gguf", {"gemma4.audio.block_count": 1}, **more)
    np.testing.assert_array_equal(logits(theirs, "odd"), logits(source, "odd"))


@pytest.mark.parametrize("name", ["large", "causal"])
def test_logits_do_not_depend_on_chunks_and_threads(name: str, folder: Path, tmp_path: Path) -> None:
    path = folder / f"{name}.gguf"
    for used in (path, quantized(path, tmp_path / "quantized.gguf", "Q4_0")):
        at_once = logits(used, "two")
        for options in ({"num_batch": 13}, {"num_batch": 12, "threads": 2}, {"prompt_cache": False}):
            np.testing.assert_array_equal(logits(used, "two", **options), at_once)


@each
def test_sequences_with_images_are_as_alone(name: str, folder: Path) -> None:
    prompts = [(text, pictures(prompt)) for prompt, (text, _) in PROMPTS.items()]
    with chaski.load(folder / f"{name}.gguf", context=96, parallel=1, prompt_cache=False) as model:
        alone = [said(model.generate(*prompt, **GREEDY)) for prompt in prompts]
    with chaski.load(folder / f"{name}.gguf", context=96, parallel=4, num_batch=16) as model:
        assert answers_at_once(model, prompts, **GREEDY) == alone
        assert answers_at_once(model, prompts, **GREEDY) == alone
    with chaski.load(folder / f"{name}.gguf", context=96) as model:
        answers = [model.generate(*prompts[1], **GREEDY) for _ in range(2)]
    assert [said(answer) for answer in answers] == [alone[1]] * 2
    assert answers[1].evaluated_tokens == 1


@pytest.mark.parametrize("name", ["large", "causal"])
def test_full_contexts_with_images_beside_each_other(name: str, folder: Path) -> None:
    """Dropped tokens and moved keys do not depend on other sequences."""
    long: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 60, "num_keep": 2}
    prompts = [(text, pictures(prompt)) for prompt, (text, _) in PROMPTS.items()]
    with chaski.load(folder / f"{name}.gguf", context=64, parallel=1, prompt_cache=False) as model:
        answers = [model.generate(*prompt, **long, ignore_eos=True) for prompt in prompts]
    assert all(answer.shifted_tokens for answer in answers)
    with chaski.load(folder / f"{name}.gguf", context=64, parallel=4, num_batch=24) as model:
        together = answers_at_once(model, prompts, **long, ignore_eos=True)
    assert together == [said(answer) for answer in answers]


def test_who_sees_both_ways_is_said_or_follows_from_the_size(folder: Path, tmp_path: Path) -> None:
    key = "gemma4.vision.is_bidirectional"
    with open_gguf(folder / "causal.gguf") as file:
        assert file.get(key, bool) is False
    with open_gguf(folder / "large.gguf") as file:
        assert key not in file.metadata
    other = changed(folder / "large.gguf", tmp_path / "other.gguf", {key: False})
    assert np.abs(logits(other, "odd") - logits(folder / "large.gguf", "odd")).max() > 0.1


def test_groups_must_fit_a_batch(folder: Path) -> None:
    with pytest.raises(OptionError, match="12 tokens must be computed at once"):
        logits(folder / "large.gguf", "line", num_batch=8)
    assert len(logits(folder / "causal.gguf", "line", num_batch=8))


@pytest.mark.parametrize(
    ("metadata", "left_out", "kind", "message"),
    [
        (
            {"clip.vision.attention.head_count": 4},
            (),
            ModelError,
            "10 elements cannot be split into pairs",
        ),
        ({"clip.vision.image_max_pixels": 64 * 64 * 9}, (), ModelError, "1152 columns of patches"),
        ({}, ("v.position_embd.weight",), ModelError, "position_embd.* is missing"),
        ({"clip.vision.projector_type": "gemma3"}, (), UnsupportedError, "'gemma3' does not fit Gemma 4"),
        ({}, ("_min", "_max"), UnsupportedError, "only v.clamp_data"),
    ],
)
def test_what_a_projector_may_not_say(
    metadata: dict[str, Any],
    left_out: tuple[str, ...],
    kind: type[Exception],
    message: str,
    folder: Path,
    tmp_path: Path,
) -> None:
    source = folder / "causal-mmproj.gguf"
    more = {"v.clamp_data": np.ones(60, np.float32)} if "_min" in left_out else {}
    projector = changed(source, tmp_path / "projector.gguf", metadata, *left_out, **more)
    with pytest.raises(kind, match=message):
        chaski.load(folder / "causal-text.gguf", projector=projector)
