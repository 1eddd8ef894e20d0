"""Videos, and images of further encoders, through the server, against the same model without a server."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import chaski
from chaski.image import as_video
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.model.test_qwen_video import frame_files, webp
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_vision import DATA

SEEING = ("glm4v",)
CLIP, FRAMES = webp(11, 5.0, 48, 64), frame_files(7, 32, 16)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("videos")
    for name in ("qwen3vl", "qwen2vl", *SEEING):
        for _ in create(
            Store(folder / "store"), ModelName.parse(name), Recipe(sources=[DATA / f"{name}.gguf"])
        ):
            pass
    patch = pytest.MonkeyPatch()
    patch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE), folder / "store") as found:
        yield found
    patch.undo()


def url(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def answered(server: Running, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json={"model": "qwen3vl", "temperature": 0, **body}, timeout=60)


def chat(server: Running, part: dict[str, Any], **others: Any) -> httpx.Response:
    parts = [{"type": "text", "text": "see "}, part, {"type": "text", "text": "here"}]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 12, **others}
    return answered(server, "/v1/chat/completions", body)


@pytest.fixture(scope="module")
def wanted() -> dict[str, chaski.Answer]:
    """The answers to the two videos."""
    parts = [{"type": "text", "text": "see "}, {"type": "image"}, {"type": "text", "text": "here"}]
    with chaski.load(DATA / "qwen3vl.gguf", context=256) as model:
        return {
            name: model.chat(
                [{"role": "user", "content": parts, "images": [video]}],
                temperature=0,
                num_predict=12,
                special=True,
            )
            for name, video in (("clip", as_video([CLIP])), ("frames", as_video(FRAMES, 1.5)))
        }


def test_parts_of_openais_chat(server: Running, wanted: dict[str, chaski.Answer]) -> None:
    frames = [url(frame, "image/png") for frame in FRAMES]
    joined = "data:video/jpeg;base64," + ",".join(b64encode(frame).decode() for frame in FRAMES)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("clip", {"type": "video_url", "video_url": {"url": url(CLIP, "video/webp")}}),
        ("clip", {"type": "video_url", "video_url": url(CLIP, "image/webp"), "fps": 2}),
        ("clip", {"type": "input_video", "input_video": {"url": url(CLIP, "image/webp")}}),
        ("frames", {"type": "video", "video": frames, "fps": 1.5}),
        ("frames", {"type": "video_url", "video_url": {"url": joined, "fps": 1.5}}),
    ]
    for name, part in cases:
        reply = chat(server, part).json()
        assert reply["usage"]["prompt_tokens"] == wanted[name].prompt_tokens > 40
        assert reply["choices"][0]["message"]["content"] == wanted[name].text


def test_a_part_of_openais_responses(server: Running, wanted: dict[str, chaski.Answer]) -> None:
    parts = [
        {"type": "input_text", "text": "see "},
        {"type": "input_video", "video_url": url(CLIP, "video/webp")},
        {"type": "input_text", "text": "here"},
    ]
    body = {"input": [{"role": "user", "content": parts}], "max_output_tokens": 12}
    reply = answered(server, "/v1/responses", body).json()
    assert reply["output"][0]["content"][0]["text"] == wanted["clip"].text


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"video_url": {"url": "https://example.org/a.mp4"}}, "video URLs are not currently supported"),
        ({"video_url": {"url": url(b"no video", "video/mp4")}}, "video_url.url: not an image"),
        ({"video_url": {"url": url(FRAMES[0], "video/mp4")}}, "a PNG image is not a video"),
        ({"video_url": {"url": url(CLIP, "video/mp4"), "fps": 0}}, "fps is 0.0; it must be above 0"),
        ({"video_url": {"url": url(as_video([CLIP]), "video/mp4")}}, "video_url.url: not an image"),
        ({"type": "video", "video": [url(FRAMES[0], "image/png")]}, "has 1 frames; a video has at least 2"),
    ],
)
def test_what_is_not_a_video(server: Running, part: dict[str, Any], message: str) -> None:
    reply = chat(server, {"type": "video_url", **part})
    assert reply.status_code == 400
    assert message in reply.json()["error"]["message"]


def test_models_of_images_refuse_videos(server: Running) -> None:
    part = {"type": "video_url", "video_url": url(CLIP, "video/webp")}
    reply = chat(server, part, model="qwen2vl")
    assert reply.status_code == 400
    assert "this model reads images, not videos" in reply.json()["error"]["message"]


def test_a_video_file_among_ollamas_images(server: Running) -> None:
    """A damaged file is refused before anything is computed, with PyAV and without."""
    message = {
        "role": "user",
        "content": "see",
        "images": [b64encode(b"\0\0\0\x18ftypmp42" + bytes(50)).decode()],
    }
    reply = answered(server, "/api/chat", {"messages": [message], "stream": False})
    assert reply.status_code >= 400
    assert "video" in reply.json()["error"]


@pytest.mark.parametrize("name", SEEING)
def test_images_of_further_encoders(server: Running, name: str) -> None:
    parts = [{"type": "text", "text": "see "}, {"type": "image"}, {"type": "text", "text": "here"}]
    with chaski.load(DATA / f"{name}.gguf", context=256) as model:
        wanted = model.chat(
            [{"role": "user", "content": parts, "images": [FRAMES[0]]}],
            temperature=0,
            num_predict=12,
            special=True,
        )
    reply = chat(server, {"type": "image_url", "image_url": {"url": url(FRAMES[0], "image/png")}}, model=name)
    assert reply.json()["choices"][0]["message"]["content"] == wanted.text
    assert reply.json()["usage"]["prompt_tokens"] == wanted.prompt_tokens > 10
    message = {"role": "user", "content": "see", "images": [b64encode(FRAMES[0]).decode()]}
    body = {"messages": [message], "stream": False, "model": name, "options": {"num_predict": 3}}
    assert answered(server, "/api/chat", body).json()["prompt_eval_count"] > 10
