"""Images in the requests of all dialects, up to the parsed request, without server and model."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from PIL import Image

from chaski.errors import ChaskiError, ImageError, OptionError, ResponseNotFoundError, UnsupportedError
from chaski.image import MAX_BYTES
from chaski.server.dialects import anthropic, ollama, openai
from chaski.server.dialects.common.images import read_base64
from chaski.server.dialects.responses import read_response
from chaski.server.http.problems import problem_of
from chaski.server.response_store import ResponseStore, StoredResponse


def png(color: str) -> bytes:
    buffer = BytesIO()
    Image.new("RGB", (2, 3), color).save(buffer, "PNG")
    return buffer.getvalue()


RED, BLUE = png("red"), png("blue")


def text(data: bytes) -> str:
    return b64encode(data).decode()


def native(*images: object) -> Any:
    return ollama.read_chat(
        {"model": "m", "messages": [{"role": "user", "content": "hi", "images": list(images)}]}
    ).messages


def of_openai(*content: object) -> Any:
    return openai.read_chat({"model": "m", "messages": [{"role": "user", "content": list(content)}]}).messages


def of_anthropic(*content: object) -> Any:
    return anthropic.read_messages(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": list(content)}]}
    ).messages


def of_responses(*content: object) -> Any:
    return read_response({"model": "m", "input": [{"role": "user", "content": list(content)}]}).chat.messages


def link(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def data_url(data: bytes, kind: str = "image/png") -> dict[str, Any]:
    return link(f"data:{kind};base64,{text(data)}")


def block(data: bytes, **source: str) -> dict[str, Any]:
    usual = {"type": "base64", "media_type": "image/png", "data": text(data)}
    return {"type": "image", "source": usual | source}


def say(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_native_images_are_beside_the_text() -> None:
    assert native(text(RED), text(BLUE)) == [{"role": "user", "content": "hi", "images": [RED, BLUE]}]
    assert native() == [{"role": "user", "content": "hi"}]
    wish = ollama.read_generate({"model": "m", "prompt": "hi", "images": [text(RED)]})
    assert (wish.prompt, wish.images) == ("hi", [RED])


def test_parts_keep_their_order() -> None:
    expected = [
        {"role": "user", "content": "one\nfirstthentwo", "images": [RED, BLUE], "image_places": [9, 13]}
    ]
    words = (say("one"), say("first"), None, say("then"), None, say("two"))
    pictures = iter((RED, BLUE))
    assert of_openai(*(data_url(next(pictures)) if word is None else word for word in words)) == expected
    pictures = iter((RED, BLUE))
    assert of_anthropic(*(block(next(pictures)) if word is None else word for word in words)) == expected


def test_the_responses_api() -> None:
    url = data_url(RED)["image_url"]["url"]
    parts = ({"type": "input_text", "text": "what"}, {"type": "input_image", "image_url": url})
    assert of_responses(*parts) == [{"role": "user", "content": "what", "images": [RED], "image_places": [4]}]
    response = StoredResponse({"id": "r"}, of_responses(*parts))
    memory = ResponseStore(max_bytes=120 + len(RED))
    memory.add("me", response)
    assert memory.get("me", "r") is response
    memory = ResponseStore(max_bytes=40 + len(RED))
    memory.add("me", response)
    with pytest.raises(ResponseNotFoundError):
        memory.get("me", "r")


def test_data_urls_need_no_kind_and_may_stand_alone() -> None:
    for part in (
        data_url(RED, ""),
        data_url(RED, "image/webp"),
        {"type": "image_url", "image_url": data_url(RED)["image_url"]["url"]},
    ):
        assert of_openai(part) == [{"role": "user", "content": "", "images": [RED], "image_places": [0]}]


def test_results_of_tools_may_be_images() -> None:
    used = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [say("seen:"), block(BLUE)]}
    messages = anthropic.read_messages(
        {
            "model": "m",
            "max_tokens": 9,
            "messages": [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}],
        }
    ).messages
    expected = {"role": "tool", "content": "seen:", "images": [BLUE], "image_places": [5]}
    assert messages[1:] == [expected | {"tool_call_id": "t", "tool_name": "look"}]


@pytest.mark.parametrize(
    ("read", "kind", "words"),
    [
        (lambda: native("no base64!"), OptionError, r"images\[0\] is not base64"),
        (lambda: native(text(RED), 3), OptionError, r"images\[1\] must be a string"),
        (lambda: native(text(b"hello")), ImageError, r"images\[0\]: not an image: .* 68 65 6c 6c 6f"),
        (lambda: native("A" * (MAX_BYTES * 2)), ImageError, "is too large; at most 33554432 bytes"),
        (lambda: native(*[text(RED)] * 65), OptionError, "contains 65 images; at most 64"),
        (
            lambda: ollama.read_generate({"model": "m", "prompt": "", "images": [text(RED)] * 65}),
            OptionError,
            "at most 64",
        ),
        (lambda: of_openai(*[data_url(RED)] * 65), OptionError, "at most 64"),
        (lambda: of_anthropic(*[block(RED)] * 65), OptionError, "at most 64"),
        (lambda: of_openai(link("https://a.b/c.png")), OptionError, "please use base64 encoded data instead"),
        (lambda: of_responses({"type": "input_image", "image_url": "http://a/b"}), OptionError, "base64"),
        (lambda: of_responses({"type": "input_image", "file_id": "f"}), UnsupportedError, "data URLs"),
        (lambda: of_openai(link("file:///etc/passwd")), OptionError, "must be a URL like data:image/png"),
        (lambda: of_openai(link("data:image/png,%89PNG")), OptionError, "must be a URL like"),
        (lambda: of_openai(data_url(RED, "text/html")), OptionError, "is text/html, not an image"),
        (lambda: of_openai({"type": "image_url"}), OptionError, "must be a URL like"),
        (lambda: of_openai({"type": "input_audio"}), UnsupportedError, "'input_audio' is not supported"),
        (lambda: of_anthropic(block(RED, type="url")), OptionError, "image source 'url' is not supported"),
        (lambda: of_anthropic({"type": "image", "source": {"type": "base64"}}), OptionError, "source.data"),
    ],
)
def test_what_is_refused(read: Callable[[], Any], kind: type[ChaskiError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        read()
    assert problem_of(caught.value).status == 400


def test_base64_in_the_spellings_of_clients() -> None:
    """It accepts MIME line breaks, spaces, missing padding, and the URL-safe alphabet."""
    data = RED
    plain = b64encode(data).decode()
    broken = "\r\n".join(plain[at : at + 76] for at in range(0, len(plain), 76))
    for spelled in (
        plain,
        broken,
        f" {plain}\n",
        plain.rstrip("="),
        plain.replace("+", "-").replace("/", "_"),
    ):
        assert read_base64(spelled, "images[0]") == data
    for wrong in ("a", plain[:40] + "é", plain[:40] + "*", "===="):
        with pytest.raises((OptionError, ImageError)):
            read_base64(wrong, "images[0]")
