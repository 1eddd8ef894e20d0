"""LLaVA 1.5 against transformers: CLIP and its projector in front of the ordinary Llama.

The checkpoint and the expected numbers are made by tools/fixtures/make_llava.py.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image as PillowImage

import chaski
from chaski.convert.convert import convert
from chaski.errors import UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.formats.requantize import requantize
from chaski.ml import BackendOptions, open_backend
from chaski.ml.graph import Dim, DType, Graph, Tensor
from chaski.model.encoder import EncoderProgram
from chaski.model.registry import build_model
from chaski.model.weights import bind_weights
from chaski.runner.files import open_files
from chaski.store.model import StoredModel
from tests.image.pictures import picture
from tests.llava.prompts import SIZES, TEXTS

DATA = Path(__file__).parents[1] / "data" / "llava"
TOLERANCE = {"reference": 1e-4, "cpu": 1e-3}

on_both = pytest.mark.parametrize("backend", ["reference", "cpu"])


@cache
def expected() -> dict[str, Any]:
    with np.load(DATA / "expected.npz") as arrays:
        return dict(arrays)


def png(name: str) -> bytes:
    file = io.BytesIO()
    PillowImage.fromarray(picture(*SIZES[name])).save(file, "png")
    return file.getvalue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text and vision in one file."""
    target = tmp_path_factory.mktemp("llava") / "llava.gguf"
    convert(DATA, target, "F32")
    return target


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The text model, and its projector as llama.cpp has it."""
    folder = tmp_path_factory.mktemp("llava")
    convert(DATA, folder / "text.gguf", "F32", projector=folder / "mmproj.gguf")
    return folder / "text.gguf", folder / "mmproj.gguf"


def logits(path: Path, name: str, **options: Any) -> NDArray[np.float32]:
    text, pictures = TEXTS[name]
    with chaski.load(path, **{"context": 128, "threads": 2, **options}) as model:
        return np.asarray(model.logits(text, [png(each) for each in pictures]))


class Tower:
    """The encoder without the projector."""

    is_bidirectional = False

    def __init__(self, vision: Any) -> None:
        self._vision, self.shape = vision, vision.shape

    def read_image(self, data: bytes) -> Any:
        raise NotImplementedError

    def encode_multimodal(self, graph: Graph, patches: Dim, rows: Dim, history: Any) -> Tensor:
        states: Tensor = self._vision.v(graph, patches, rows, history)
        return states


@on_both
def test_encoded_images_equal_those_of_transformers(backend: str, whole: Path) -> None:
    file = open_gguf(whole)
    model: Any = build_model(file)
    opened = open_backend(backend, BackendOptions(threads=2))
    bind_weights(model, file, opened, lambda _: None)
    for vision, wanted in ((Tower(model.vision), "states"), (model.vision, "rows")):
        encoder = EncoderProgram(vision, opened, DType.F32)
        for name in SIZES:
            found = encoder.encode(model.vision.read_image(png(name)))
            np.testing.assert_allclose(found, expected()[f"{name}.{wanted}"], atol=TOLERANCE[backend])


@on_both
@pytest.mark.parametrize("name", TEXTS)
def test_logits_equal_those_of_transformers(name: str, backend: str, whole: Path) -> None:
    assert expected()[f"{name}.logits"].std() > 0.3
    np.testing.assert_allclose(
        logits(whole, name, backend=backend), expected()[f"{name}.logits"], rtol=0, atol=TOLERANCE[backend]
    )


@pytest.mark.parametrize("name", TEXTS)
def test_one_file_is_as_two(name: str, whole: Path, parts: tuple[Path, Path]) -> None:
    text, projector = parts
    np.testing.assert_array_equal(logits(text, name, projector=projector), logits(whole, name))


@pytest.mark.parametrize("type", [None, "Q4_0"])
def test_logits_do_not_depend_on_chunks_and_threads(type: str | None, whole: Path, tmp_path: Path) -> None:
    path = whole
    if type is not None:
        path = tmp_path / "quantized.gguf"
        with open_gguf(whole) as file:
            requantize(file, path, type)
    at_once = logits(path, "two")
    np.testing.assert_array_equal(logits(path, "two", num_batch=7), at_once)
    np.testing.assert_array_equal(logits(path, "two", num_batch=1, threads=1), at_once)


def test_sequences_with_images_are_as_alone(whole: Path) -> None:
    greedy: dict[str, Any] = {"temperature": 0, "logprobs": True, "num_predict": 6}
    prompts = [(text, [png(each) for each in pictures]) for text, pictures in TEXTS.values()]
    with chaski.load(whole, context=96, parallel=1) as model:
        alone = [model.generate(text, images, **greedy) for text, images in prompts]
    with chaski.load(whole, context=96, parallel=3, num_batch=16) as model:
        streams = [model.stream(text, images, **greedy) for text, images in prompts]
        together = [[next(stream)] for stream in streams]
        for stream, events in zip(streams, together, strict=True):
            events += stream
        again = model.generate(*prompts[2], **greedy)
    for answer, events in zip(alone, together, strict=True):
        assert tuple(token for event in events[:-1] for token in event.token_ids) == answer.token_ids
        assert tuple(entry for event in events[:-1] for entry in event.logprobs) == answer.logprobs
    assert (again.token_ids, again.logprobs) == (alone[2].token_ids, alone[2].logprobs)
    assert again.evaluated_tokens == 1


def changed(source: Path, target: Path, metadata: dict[str, Any], names: dict[str, str]) -> Path:
    """The same projector with other metadata, and other names for some parts of names."""
    with open_gguf(source) as file:
        tensors = {}
        for name, info in file.tensors.items():
            array = np.frombuffer(info.data.tobytes(), np.float32).reshape(info.shape)
            parts = [names.get(part, part) for part in name.split(".")]
            tensors[".".join(parts)] = (array, QuantType.F32)
        write_gguf(target, {**file.metadata, **metadata}, tensors)
    return target


def test_projectors_whose_ways_up_and_down_have_each_others_names(
    parts: tuple[Path, Path], tmp_path: Path
) -> None:
    """As llama.cpp's first converter wrote them."""
    names = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}
    swapped = changed(parts[1], tmp_path / "swapped.gguf", {}, names)
    found = logits(parts[0], "one", projector=swapped)
    np.testing.assert_array_equal(found, logits(parts[0], "one", projector=parts[1]))


def test_a_stored_projector_that_cannot_be_used_leaves_the_text(
    parts: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = changed(parts[1], tmp_path / "other.gguf", {"clip.projector_type": "resampler"}, {})
    file, projector = open_files(StoredModel(None, parts[0], projectors=(other,)))
    assert projector is None
    assert "text only: " in caplog.text
    assert "projector of type 'resampler'" in caplog.text
    file, projector = open_files(StoredModel(None, parts[0], projectors=(parts[1],)))
    assert projector is not None
    assert file.architecture == "llama"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"clip.projector_type": "resampler"}, "projector of type 'resampler' .* supported: mlp"),
        ({"clip.vision.image_grid_pinpoints": [336, 672]}, r"several parts \(image_grid_pinpoints"),
        ({"clip.use_silu": True}, "use_silu is not supported"),
    ],
)
def test_what_other_projectors_do_is_refused(
    metadata: dict[str, Any], message: str, parts: tuple[Path, Path], tmp_path: Path
) -> None:
    other = changed(parts[1], tmp_path / "other.gguf", metadata, {})
    with pytest.raises(UnsupportedError, match=message):
        chaski.load(parts[0], projector=other)
