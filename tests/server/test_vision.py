"""Images through the server with the real clients, against the same model without a server."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import ollama
import openai
import pytest

import chaski
from chaski.chat.options import GenerateOptions
from chaski.names import ModelName
from chaski.server.settings import Settings
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.image.pictures import png
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running
from tests.tiny_vision import DATA, write_text_part

ONE, OTHER = png(20, 33), png(37, 53)
COLD = {"temperature": 0}
ANSWER: GenerateOptions = {"temperature": 0, "num_predict": 12}
SPOKEN: GenerateOptions = {**ANSWER, "special": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Run a server: `vision` includes its encoder, `two-files` has it separately, `text-only` has none."""
    folder = tmp_path_factory.mktemp("vision")
    text = write_text_part(DATA / "mistral3.gguf", folder / "text.gguf")
    models = {
        "vision": [DATA / "mistral3.gguf"],
        "two-files": [text, DATA / "mistral3-mmproj.gguf"],
        "text-only": [text],
    }
    for name, sources in models.items():
        for _ in create(Store(folder / "store"), ModelName.parse(name), Recipe(sources=sources)):
            pass
    patch = pytest.MonkeyPatch()
    patch.setenv("CHASKI_THREADS", "1")
    with running(Settings(address=SOMEWHERE, parallel=2), folder / "store") as found:
        yield found
    patch.undo()


@pytest.fixture(scope="module")
def model() -> Iterator[chaski.LLM]:
    with chaski.load(DATA / "mistral3.gguf", context=256) as loaded:
        yield loaded


def expected(model: chaski.LLM, content: Any, *images: bytes) -> chaski.Answer:
    return model.chat([{"role": "user", "content": content, "images": list(images)}], **SPOKEN)


def text(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.fixture(scope="module")
def native(server: Running) -> Iterator[ollama.Client]:
    client = ollama.Client(server.url)
    yield client
    client._client.close()


def test_chat_of_ollamas_client(native: ollama.Client, model: chaski.LLM, tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(ONE)
    message = {"role": "user", "content": "are they the same?", "images": [tmp_path / "one.png", OTHER]}
    wanted = expected(model, "are they the same?", ONE, OTHER)
    for name in ("vision", "two-files"):
        reply = native.chat(name, [message], options=ANSWER)
        assert reply.prompt_eval_count == wanted.prompt_tokens > 50
        assert reply.message.content == wanted.text or name == "two-files"
    streamed = "".join(
        part.message.content or "" for part in native.chat("vision", [message], options=ANSWER, stream=True)
    )
    assert streamed == wanted.text


def test_generate_of_ollamas_client(native: ollama.Client, model: chaski.LLM) -> None:
    wanted = expected(model, "what is it?", ONE)
    reply = native.generate("vision", "what is it?", images=[ONE], options=ANSWER)
    assert (reply.response, reply.prompt_eval_count) == (wanted.text, wanted.prompt_tokens)
    assert reply.context is not None
    assert min(reply.context) >= 0
    raw = native.generate("vision", "it is", images=[ONE], options=ANSWER, raw=True)
    assert raw.response == model.generate("it is", [ONE], **ANSWER).text
    only = native.generate("vision", "", images=[ONE], options=ANSWER)
    assert only.response == expected(model, "", ONE).text


def test_openais_client(server: Running, model: chaski.LLM) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        _ask_openais_client(client, model)


def _ask_openais_client(client: openai.OpenAI, model: chaski.LLM) -> None:
    parts: Any = [
        {"type": "text", "text": "see "},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text(ONE)}"}},
        {"type": "text", "text": "here"},
    ]
    wanted = expected(
        model, [{"type": "text", "text": "see "}, {"type": "image"}, {"type": "text", "text": "here"}], ONE
    )
    reply = client.chat.completions.create(
        model="vision", messages=[{"role": "user", "content": parts}], temperature=0, max_tokens=12
    )
    assert reply.choices[0].message.content == wanted.text
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == wanted.prompt_tokens
    again = client.responses.create(
        model="vision",
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "see "},
                    {"type": "input_image", "image_url": parts[1]["image_url"]["url"], "detail": "auto"},
                    {"type": "input_text", "text": "here"},
                ],
            }
        ],
        temperature=0,
        max_output_tokens=12,
    )
    assert again.output_text == wanted.text
    parts[1]["image_url"]["url"] = "https://example.org/cat.png"
    with pytest.raises(openai.BadRequestError, match="please use base64 encoded data instead"):
        client.chat.completions.create(model="vision", messages=[{"role": "user", "content": parts}])


def test_anthropics_client(server: Running, model: chaski.LLM) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none") as client:
        _ask_anthropics_client(client, model)


def _ask_anthropics_client(client: anthropic.Anthropic, model: chaski.LLM) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": text(ONE)}
    messages: Any = [
        {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "and?"}]}
    ]
    wanted = expected(model, "and?", ONE)
    reply = client.messages.create(model="vision", messages=messages, extra_body=COLD, max_tokens=12)
    assert "".join(getattr(block, "text", "") for block in reply.content) == wanted.text
    count = client.messages.count_tokens(model="vision", messages=messages)
    assert count.input_tokens == wanted.prompt_tokens
    source |= {"type": "url", "url": "https://example.org/cat.png"}
    with pytest.raises(anthropic.BadRequestError, match="please use base64 data instead"):
        client.messages.create(model="vision", messages=messages, max_tokens=12)


def test_old_turns_with_images_are_left_out(server: Running, model: chaski.LLM) -> None:
    """A conversation that exceeds the context loses whole turns with their images."""
    turns: list[dict[str, Any]] = []
    for index in range(12):
        turns.append({"role": "user", "content": f"image {index}", "images": [png(20 + index, 33)]})
        turns.append({"role": "assistant", "content": "yes"})
    turns.append({"role": "user", "content": "the last", "images": [OTHER]})
    asked = {
        "model": "vision",
        "messages": [{**turn, "images": [text(i) for i in turn.get("images", ())]} for turn in turns],
    }
    reply = server.post("/api/chat", asked | {"stream": False, "options": ANSWER}).json
    assert reply["truncated"]
    wanted = model.chat(turns, **{**SPOKEN, "truncate": True})
    assert wanted.dropped_tokens == reply["prompt_dropped_count"] > 150
    assert 100 < wanted.prompt_tokens == reply["prompt_eval_count"]
    assert reply["message"]["content"] == wanted.text


def bomb() -> bytes:
    whole = png(3, 3)
    return whole[:16] + struct.pack(">II", 30_000, 30_000) + whole[24:]


@pytest.mark.parametrize(
    ("model", "image", "words"),
    [
        ("text-only", ONE, "registry.ollama.ai/library/text-only:latest does not support vision"),
        ("vision", ONE[:200], "the PNG image cannot be read"),
        ("vision", bomb(), "cannot be read|at most 64000000 are allowed"),
        ("vision", b"hello", "images[0]: not an image"),
    ],
)
def test_what_is_refused(server: Running, model: str, image: bytes, words: str) -> None:
    message = {"role": "user", "content": "look", "images": [text(image)]}
    chat = server.post("/api/chat", {"model": model, "messages": [message]})
    generate = server.post("/api/generate", {"model": model, "prompt": "look", "images": message["images"]})
    for reply in (chat, generate):
        assert reply.status == 400
        assert any(each in reply.error for each in words.split("|"))


def test_what_is_shown(server: Running) -> None:
    shown = {
        name: server.post("/api/show", {"model": name}).json for name in ("vision", "two-files", "text-only")
    }
    assert shown["vision"]["capabilities"] == shown["two-files"]["capabilities"] == ["completion", "vision"]
    assert shown["text-only"]["capabilities"] == ["completion"]
    assert shown["two-files"]["projector_info"]["clip.projector_type"] == "pixtral"
    assert "projector_info" not in shown["vision"]
