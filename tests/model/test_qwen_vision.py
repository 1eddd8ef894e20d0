"""Qwen's vision models against transformers, starting from image files.

tools/fixtures/make_qwen_vision.py makes the models and the expected values. Images have odd sizes and more
squares per side than a window, and one exceeds the size limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import chaski
from chaski.chat.image_rows import ImageRun, coordinates, extent
from chaski.errors import ImageError, ModelError, UnsupportedError
from chaski.formats.gguf import GGUFFile, open_gguf
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.kvcache.causal import CausalCache
from chaski.model.multimodal import Image
from tests.image.pictures import png
from tests.rewriting import all_tensors, bytes_as
from tests.tiers import long_after
from tests.tiny_vision import DATA, write_projector, write_text_part
from tests.vision_oracle import BACKENDS, F32, BoundEncoder, answers_at_once, quantized, said

MODELS = ["qwen2vl", "qwen25vl", "qwen3vl", "qwen35", "qwen3vlmoe", "qwen35moe"]
PROMPTS = ["odd", "tall", "tiny", "large", "two", "text"]


@cache
def expected(model: str) -> dict[str, NDArray[Any]]:
    with np.load(DATA / f"{model}.npz") as arrays:
        return dict(arrays)


def file(model: str) -> Path:
    return DATA / f"{model}.gguf"


def prompts_of(model: str) -> list[str]:
    """Return the prompts with stored answers."""
    return [prompt for prompt in PROMPTS if f"{prompt}/ids" in expected(model)]


@cache
def images(prompt: str) -> list[bytes]:
    return [png(*size) for size in expected(MODELS[0]).get(f"{prompt}/sizes", [])]


def text(prompt: str) -> str:
    return str(expected(MODELS[0])[f"{prompt}/text"])


def logits(path: Path, prompt: str, **options: Any) -> F32:
    usual = {"context": 160, "threads": 1, "kv_type": "f16"}
    with chaski.load(path, **usual | options) as model:
        return np.asarray(model.logits(text(prompt), images(prompt)))


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("model", long_after(2, MODELS))
def test_layers_and_rows_equal_those_of_transformers(model: str, backend: str, tolerance: float) -> None:
    encoder, wanted = BoundEncoder(file(model), backend), expected(model)
    first = prompts_of(model)[0]
    image = encoder.vision.read_image(images(first)[0])
    for depth, found in enumerate(encoder.states(image, encoder.vision.v.blk)):
        state = wanted[f"{first}/layer{depth}"]
        some = found[:: len(found) // len(state)]
        np.testing.assert_allclose(some, state, rtol=0, atol=tolerance, err_msg=f"state {depth}")
    for prompt in prompts_of(model)[:-1]:
        rows = [encoder.rows(encoder.vision.read_image(data)) for data in images(prompt)]
        np.testing.assert_allclose(np.concatenate(rows), wanted[f"{prompt}/rows"], rtol=0, atol=tolerance)


@pytest.mark.parametrize(("backend", "tolerance"), BACKENDS)
@pytest.mark.parametrize("model", long_after(2, MODELS))
def test_logits_equal_those_of_transformers(model: str, backend: str, tolerance: float) -> None:
    with chaski.load(file(model), context=160, backend=backend, kv_type="f32") as loaded:
        for prompt in prompts_of(model):
            wanted = {key: expected(model)[f"{prompt}/{key}"] for key in ("ids", "places", "logits")}
            found = np.asarray(loaded.logits(text(prompt), images(prompt)))
            assert len(found) == len(wanted["ids"])
            assert wanted["logits"].std() > 0.8
            np.testing.assert_allclose(
                found[wanted["places"]], wanted["logits"], rtol=0, atol=tolerance, err_msg=prompt
            )


@pytest.mark.parametrize("model", long_after(2, MODELS))
def test_ids_are_those_of_the_published_processor(model: str) -> None:
    with chaski.load(file(model), context=160) as loaded:
        (pad,) = loaded.tokenize("<|image_pad|>")
        for prompt in prompts_of(model):
            wanted = expected(model)[f"{prompt}/ids"]
            found = np.array(loaded.tokenize(text(prompt), images=images(prompt)))
            np.testing.assert_array_equal(np.where(found < 0, pad, found), wanted)
            assert np.count_nonzero(found < 0) == sum(wanted == pad)


@pytest.mark.parametrize("model", long_after(2, MODELS))
def test_answers_are_those_of_transformers(model: str) -> None:
    options: Any = {"num_predict": 32, "temperature": 0, "ignore_eos": True}
    with chaski.load(file(model), context=160, kv_type="f32") as loaded:
        for prompt in prompts_of(model):
            answer = loaded.generate(text(prompt), images(prompt), **options)
            assert list(answer.token_ids) == expected(model)[f"{prompt}/greedy"].tolist()


def test_coordinates_behind_an_image_go_on_at_its_longer_side() -> None:
    image = Image({}, 6, (6,), grid=(2, 3))
    runs = ImageRun(range(2, 8), image), ImageRun(range(9, 15), image)
    text_before, inside = (
        [[0] * 3, [1] * 3],
        [[2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4]],
    )
    behind, second = [[5] * 3], (np.array(inside) + 4).tolist()
    whole = coordinates(runs, range(17))
    assert whole.tolist() == [*text_before, *inside, *behind, *second, [9] * 3, [10] * 3]
    for begin in range(17):
        for end in range(begin + 1, 18):
            np.testing.assert_array_equal(
                coordinates(runs, range(begin, end)), coordinates(runs, range(18))[begin:end]
            )
    assert extent(runs, range(1, 8)) == 4
    assert extent(runs, range(17)) == 11
    plain = ImageRun(range(2, 8), Image({}, 6, (6,)))
    assert coordinates((plain,), range(9)).tolist() == [[index] * 3 for index in range(9)]


def test_coordinates_of_numbered_images() -> None:
    """The grid is between the first and the last row; text after an image continues at its position."""
    image = Image({}, 8, (8,), grid=(2, 3), is_numbered=True)
    runs = ImageRun(range(1, 9), image), ImageRun(range(10, 18), image)
    whole = coordinates(runs, range(19), 4)
    assert whole[[0, 1, 8, 9, 10, 17, 18]].tolist() == [[index] * 4 for index in (0, 1, 8, 9, 10, 17, 18)]
    grid = [[column, row] for row in range(2) for column in range(3)]
    assert whole[2:8].tolist() == [[2 + index, *place, 0] for index, place in enumerate(grid)]
    assert whole[11:17].tolist() == [[11 + index, *place, 1] for index, place in enumerate(grid)]
    for begin, end in ((0, 1), (1, 4), (3, 12), (8, 11), (12, 19)):
        np.testing.assert_array_equal(coordinates(runs, range(begin, end), 4), whole[begin:end])


@pytest.fixture(scope="module", params=[*MODELS, "Q4_0"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files, and one with quantized matrices, whose products use other kernels."""
    if request.param in MODELS:
        return file(request.param)
    target = tmp_path_factory.mktemp("quantized") / "model.gguf"
    return quantized(file("qwen25vl"), target, request.param)


def test_logits_do_not_depend_on_chunks_and_threads(path: Path) -> None:
    whole = logits(path, "two")
    for options in ({"num_batch": 9, "threads": 2}, {"num_batch": 1}, {"prompt_cache": False}):
        np.testing.assert_array_equal(logits(path, "two", **options), whole)


def test_answers_do_not_depend_on_other_sequences_and_on_the_cache(path: Path) -> None:
    """It computes several prompts with images at once, and again from the cache."""
    options: Any = {"num_predict": 6, "temperature": 0, "logprobs": True}
    prompts = [(text(prompt), images(prompt)) for prompt in PROMPTS]
    with chaski.load(path, context=160, parallel=1, prompt_cache=False) as model:
        alone = [said(model.generate(*prompt, **options)) for prompt in prompts]
    with chaski.load(path, context=160, parallel=6, num_batch=50) as model:
        assert answers_at_once(model, prompts, **options) == alone
        assert answers_at_once(model, prompts, **options) == alone
        again = model.generate(*prompts[0], **options)
        assert again.evaluated_tokens == 1
        assert said(again) == alone[0]


def test_full_contexts_with_images_beside_each_other(path: Path) -> None:
    """The tokens that are forgotten, and the keys that move, do not depend on others."""
    options: Any = {"num_predict": 60, "temperature": 0, "logprobs": True, "num_keep": 2, "seed": 1}
    prompts = [(text(prompt), images(prompt)) for prompt in ("odd", "two", "text")]
    with chaski.load(path, context=96, parallel=1, prompt_cache=False) as model:
        answers = [model.generate(*prompt, **options) for prompt in prompts]
    assert any(answer.shifted_tokens for answer in answers)
    with chaski.load(path, context=96, parallel=3, num_batch=50) as model:
        assert answers_at_once(model, prompts, **options) == [said(answer) for answer in answers]


@pytest.mark.parametrize("model", long_after(2, MODELS))
def test_text_does_not_depend_on_the_encoder(model: str, tmp_path: Path) -> None:
    text_only = write_text_part(file(model), tmp_path / "text.gguf")
    np.testing.assert_array_equal(logits(text_only, "text"), logits(file(model), "text"))
    with pytest.raises(UnsupportedError, match="does not see images"):
        logits(text_only, "odd")


@pytest.mark.parametrize("model", long_after(2, MODELS))
def test_the_encoder_may_be_in_a_file_of_its_own(model: str, tmp_path: Path) -> None:
    text_only = write_text_part(file(model), tmp_path / "text.gguf")
    projector = DATA / f"{model}-mmproj.gguf"
    if not projector.exists():
        projector = write_projector(file(model), tmp_path / "mmproj.gguf")
    for prompt in ("two", "text"):
        found = logits(text_only, prompt, projector=projector)
        np.testing.assert_array_equal(found, logits(file(model), prompt))


_OLLAMA = {
    "v.patch_embd": "v.patch_embed",
    "v.position_embd": "v.pos_embed",
    "v.post_ln": "v.merger.norm",
    "mm.0": "v.merger.linear_fc1",
    "mm.2": "v.merger.linear_fc2",
    ".ln1": ".norm1",
    ".ln2": ".norm2",
    ".ffn_up": ".mlp.linear_fc1",
    ".ffn_down": ".mlp.linear_fc2",
    "v.deepstack.0.": "v.deepstack_merger.0.",
    "v.deepstack.2.": "v.deepstack_merger.1.",
    ".fc": ".linear_fc",
}
_OLLAMA_KEYS = {
    "rope.dimension_sections": "rope.mrope_section",
    "vision.image_min_pixels": "vision.shortest_edge",
    "vision.image_max_pixels": "vision.longest_edge",
}


def tensors_of_ollama(source: GGUFFile) -> Iterator[tuple[str, LazyTensor]]:
    """Return tensors with both frames in one kernel, separate query, key and value, and numbered mergers."""
    for name, tensor in all_tensors(source).items():
        info = source.tensors[name]
        if not name.startswith(("v.", "mm.")):
            yield name, tensor
            continue
        for ours, theirs in _OLLAMA.items():
            name = name.replace(ours, theirs)
        if ".attn_qkv." in name:
            for letter, part in zip("qkv", np.split(info.data, 3), strict=True):
                shape = (info.shape[0] // 3, *info.shape[1:])
                yield name.replace("qkv", letter), bytes_as(part, info.type, shape)
        elif name == "v.patch_embed.weight":
            size, colors, edge, _ = info.shape
            frames = [info.data, source.tensors["v.patch_embd.weight.1"].data]
            kernel = np.stack([frame.reshape(size * colors, -1) for frame in frames], axis=1)
            yield name, bytes_as(kernel.ravel(), info.type, (size * colors, 2, edge, edge))
        elif name != "v.patch_embed.weight.1":
            yield name, tensor


@pytest.mark.parametrize("model", ["qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"])
def test_files_of_ollama(model: str, tmp_path: Path) -> None:
    with open_gguf(file(model)) as source:
        metadata = dict(source.metadata)
        flags = np.asarray(metadata.pop(f"{model}.vision.is_deepstack_layers"))
        metadata[f"{model}.vision.deepstack_visual_indexes"] = np.flatnonzero(flags).astype(np.int32)
        for ours, theirs in _OLLAMA_KEYS.items():
            metadata[f"{model}.{theirs}"] = metadata.pop(f"{model}.{ours}")
        for key in ("n_deepstack_layers", "vision.feed_forward_length", "vision.projector_type"):
            metadata.pop(f"{model}.{key}", None)
        write_gguf(tmp_path / "theirs.gguf", metadata, dict(tensors_of_ollama(source)))
    found = logits(tmp_path / "theirs.gguf", "two")
    np.testing.assert_allclose(found, logits(file(model), "two"), rtol=0, atol=1e-3)
    np.testing.assert_array_equal(logits(tmp_path / "theirs.gguf", "text"), logits(file(model), "text"))


def test_coordinates_are_for_models_that_turn_by_them() -> None:
    with pytest.raises(UnsupportedError, match=r"'qwen2vl_merger' does not work with architecture 'llama'"):
        chaski.load("guide", projector=DATA / "qwen2vl-mmproj.gguf")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rope.dimension_sections": [4, 4, 3, 0]}, "must split 10 pairs into three parts"),
        ({"rope.dimension_sections": [4, 3, 2, 1]}, "must split 10 pairs into three parts"),
        ({"vision.attention.head_count": 3}, "into pairs for rows and columns"),
        ({"vision.spatial_merge_size": 0}, "in squares of 0"),
    ],
)
def test_numbers_that_fit_no_model(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with open_gguf(file("qwen2vl")) as source:
        metadata = {**source.metadata, **{f"qwen2vl.{key}": value for key, value in changed.items()}}
        write_gguf(tmp_path / "a.gguf", metadata, all_tensors(source))
    with pytest.raises(ModelError, match=message):
        chaski.load(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_deepstack_layers": 1}, "makes rows for 2 layers of the text model, but .* = 1"),
        ({"vision.is_deepstack_layers": [True, False]}, "has 2 entries, but the encoder has 3 layers"),
        ({"vision.deepstack_visual_indexes": [0, 3]}, r"\[0, 3\] must list different layers out of 3"),
        ({"vision.deepstack_visual_indexes": [1, 1]}, r"\[1, 1\] must list different layers out of 3"),
        ({"vision.is_deepstack_layers": [True] * 3, "n_deepstack_layers": 3}, r"= 3 \(at most 2\)"),
        ({"rope.dimension_sections": [4, 4, 3, 0]}, "must split 10 pairs into three parts"),
    ],
)
def test_layers_that_make_no_rows(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with open_gguf(file("qwen3vl")) as source:
        metadata = {**source.metadata, **{f"qwen3vl.{key}": value for key, value in changed.items()}}
        write_gguf(tmp_path / "a.gguf", metadata, all_tensors(source))
    with pytest.raises(ModelError, match=message):
        chaski.load(tmp_path / "a.gguf")


def test_a_picture_that_is_far_too_long() -> None:
    with pytest.raises(ImageError, match="more than 200 times as long"):
        BoundEncoder(file("qwen2vl"), "reference").vision.read_image(png(2, 401))


def test_keys_behind_a_forgotten_image_are_turned_by_its_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int | None]] = []
    remove = CausalCache.remove

    def watched(
        self: CausalCache, sequence: int, begin: int, end: int | None = None, distance: int | None = None
    ) -> None:
        if end is not None:
            calls.append((end - begin, distance))
        remove(self, sequence, begin, end, distance)

    monkeypatch.setattr(CausalCache, "remove", watched)
    with chaski.load(file("qwen2vl"), context=96) as model:
        answer = model.generate(text("odd"), images("odd"), num_predict=60, num_keep=2, ignore_eos=True)
    assert answer.shifted_tokens
    (dropped, distance), *others = calls
    assert distance == dropped - 48 + 8, "48 rows in a grid of 8 by 6"
    assert all(dropped == distance for dropped, distance in others)
