"""Images for llama.cpp, with a fake package: sent data, and earlier errors."""

from __future__ import annotations

import sys
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chaski.chat.requests import Chat, Generate
from chaski.errors import (
    ChaskiError,
    ContextLengthError,
    ImageError,
    ModelNotFoundError,
    OptionError,
    UnsupportedError,
)
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.image import open_image
from chaski.runner.channels.llamacpp import LlamaCppChannel
from chaski.runner.channels.messages import ModelCall, TokenizeChat
from chaski.runner.channels.worker.client import Worker
from tests.image.pictures import picture, png
from tests.tiny_llama import write_tiny_llama

FAKE = Path(__file__).parent / "fake"
ONE, OTHER = png(20, 33), png(37, 53)
ROWS = 3  # of an image, as in the fake package


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the fake package importable, here and in workers."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    yield
    sys.modules.pop("xllamacpp", None)


def write_projector(path: Path, **metadata: object) -> Path:
    """Write a projector of an unknown type with one tensor."""
    entries: dict[str, Any] = {"general.architecture": "clip", "clip.has_vision_encoder": True}
    entries |= {"clip.projector_type": "of tomorrow", **metadata}
    write_gguf(path, entries, {"v.x": (np.zeros((1, 4), np.float32), QuantType.F32)})
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("seeing")
    text = write_tiny_llama(
        folder / "text.gguf", general__architecture="foreign", foreign__context_length=256
    )
    return text, write_projector(folder / "mmproj.gguf")


@pytest.fixture
def channel(files: tuple[Path, Path]) -> Iterator[LlamaCppChannel]:
    text, projector = files
    opened = LlamaCppChannel(text, {"threads": 1, "projector": projector}, lambda: None)
    yield opened
    opened.close()


def replies(channel: LlamaCppChannel, call: ModelCall) -> list[Any]:
    """Return the answer to a call, or its error."""
    found: list[Any] = []
    channel._handle(call, channel._new_task(found.append))  # the calling thread answers
    if isinstance(found[-1], Exception):
        raise found[-1]
    return found


def sent() -> list[dict[str, Any]]:
    import xllamacpp

    prompts: list[dict[str, Any]] = xllamacpp.PROMPTS
    return prompts


def test_images_stand_where_the_text_says(channel: LlamaCppChannel) -> None:
    assert channel.info.has_vision
    done = replies(channel, Generate("a [img-1] b [img-0] c", {"num_predict": 2}, (ONE, OTHER)))[-1]
    import xllamacpp

    prompt = sent()[-1]
    assert prompt["prompt_string"] == f"a {xllamacpp.MARKER} b {xllamacpp.MARKER} c"
    shapes = [open_image(b64decode(data)).shape for data in prompt["multimodal_data"]]
    assert shapes == [(37, 53, 3), (20, 33, 3)]
    assert done.prompt_tokens == 1 + len("a  b  c") + 2 * ROWS
    assert done.generated_tokens == 2


def test_conversations_with_images(channel: LlamaCppChannel) -> None:
    messages = ({"role": "user", "content": "what  is it", "images": [0], "image_places": [5]},)
    replies(channel, Chat(messages, (), {}, (ONE,)))
    import xllamacpp

    written = f"[user]what {xllamacpp.MARKER} is it[assistant]"
    assert sent()[-1]["prompt_string"] == written, "llama.cpp puts BOS before it"
    tokens = replies(channel, TokenizeChat(Chat(messages, (), {}, (ONE,))))[-1].token_ids
    assert [token for token in tokens if token < 0] == [-1] * ROWS
    spelled = "<|begin_of_text|>" + written.replace(xllamacpp.MARKER, "")
    assert len(tokens) == 1 + len(spelled) + ROWS, "the stand-in spells control tokens"


def test_an_image_is_sent_as_its_pixels(channel: LlamaCppChannel) -> None:
    """This holds for every file format; llama.cpp itself cannot read all of them."""
    from io import BytesIO

    from PIL.Image import fromarray

    file = BytesIO()
    fromarray(picture(9, 7)).save(file, "WEBP", lossless=True)
    replies(channel, Generate("a", {}, (file.getvalue(),)))
    data = b64decode(sent()[-1]["multimodal_data"][0])
    np.testing.assert_array_equal(open_image(data), picture(9, 7))
    assert data.startswith(b"\x89PNG")


REFUSED: list[tuple[Any, tuple[bytes, ...], type[ChaskiError], str]] = [
    ("a", (ONE[:90],), ImageError, "the PNG image cannot be read"),
    ("a", (b"RIFF....WAVEfmt ",), ImageError, "not an image"),
    ("a", (b"",), ImageError, "there is no data"),
    ("a [img-0]", (ONE,), OptionError, "needs text after the last image"),
    ((1, 2), (ONE,), ChaskiError, r"takes images only in texts|needs text after"),
    ((1, -1, -1, -1, 2), (ONE,), UnsupportedError, "takes images only in texts, not among token ids"),
    ("x" * 400, (ONE,), ContextLengthError, "the prompt has 404 tokens, .*the context holds 254"),
]


@pytest.mark.parametrize(("prompt", "images", "kind", "reason"), REFUSED)
def test_refusals(
    prompt: Any, images: tuple[bytes, ...], kind: type[ChaskiError], reason: str, channel: LlamaCppChannel
) -> None:
    for truncate in (False, True) if len(prompt) > 20 else (False,):
        with pytest.raises(kind, match=reason if not truncate else "cannot truncate prompts with images"):
            replies(channel, Generate(prompt, {"truncate": truncate}, images))
    assert replies(channel, Generate("abc", {}))[-1].generated_tokens == 4, "others are answered"


def test_a_context_of_tokens_has_no_images(channel: LlamaCppChannel) -> None:
    turns = ({"role": "user", "content": "a", "images": [0]},)
    with pytest.raises(UnsupportedError, match="images together with the field context"):
        replies(channel, Chat(turns, (), {}, (ONE,), context=(5, 6)))


def test_answers_end_at_a_full_context(channel: LlamaCppChannel) -> None:
    """llama.cpp cannot drop tokens of prompts with images."""
    prompts = channel._prompts
    assert prompts.prepare(Generate("abc", {"num_predict": 1000})).limit == prompts.context + 1


def test_what_llama_cpp_is_told(channel: LlamaCppChannel, files: tuple[Path, Path]) -> None:
    import xllamacpp

    told = xllamacpp.Server.parameters
    assert told.mmproj.path == str(files[1])
    assert told.n_batch == told.n_ubatch >= 512
    weights = channel.info.memory.devices[0].weights
    assert weights > files[1].stat().st_size


def test_a_projector_that_is_not_there(files: tuple[Path, Path], tmp_path: Path) -> None:
    missing = pytest.raises(ModelNotFoundError, match=r"the projector file .*none\.gguf")
    with Worker(files[0], projector=str(tmp_path / "none.gguf")) as worker, missing:
        worker.info()


def test_a_projector_that_is_not_native_is_a_reason_for_llama_cpp(tmp_path: Path) -> None:
    """Our engine supports the text model, but not this projector."""
    text = write_tiny_llama(tmp_path / "text.gguf")
    projector = write_projector(tmp_path / "mmproj.gguf")
    with Worker(text, projector=str(projector), threads=1) as worker:
        info = worker.info()
        assert (info.engine, info.has_vision) == ("llama.cpp", True)
        assert "'of tomorrow'" in info.engine_reason
        assert str(tmp_path) not in info.engine_reason
        assert worker.generate("abc", [ONE], num_predict=3).text.startswith("cba")
    with Worker(text, threads=1) as worker:
        assert (worker.info().engine, worker.info().engine_reason) == ("native", "")
