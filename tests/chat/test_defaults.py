"""The effect of a stored model's layers on its answers."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import chaski
from chaski.chat.defaults import Defaults
from chaski.errors import OptionError, SamplingError, UnsupportedError
from chaski.store.model import StoredModel, find_model
from tests.store.stores import put_by_hand, snapshot
from tests.tiny_llama import write_tiny_llama

SHORT = {"temperature": 0, "num_predict": 5}
HELLO = {"role": "user", "content": "hello"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    monkeypatch.setenv("CHASKI_THREADS", "1")
    return tmp_path


def put(root: Path, weights: Path, **layers: object) -> None:
    texts = {kind: x.encode() if isinstance(x, str) else json.dumps(x).encode() for kind, x in layers.items()}
    put_by_hand(root, "registry.ollama.ai/library/mine/latest", {"model": weights.read_bytes(), **texts})


def test_parameters_and_messages_take_effect(root: Path, tiny_llama: Path) -> None:
    opening = [{"role": "user", "content": "in"}, {"role": "assistant", "content": "the"}]
    parameters = {**SHORT, "num_ctx": 64, "seed": -1, "repeat_last_n": -1, "num_gpu": 1}
    put(root, tiny_llama, params=parameters, system="be brief", messages=opening)
    before = snapshot(root)
    system = {"role": "system", "content": "be brief"}
    with chaski.load(tiny_llama) as plain, chaski.load("mine") as mine:
        assert (plain.context, mine.context) == (256, 64)
        options = {**SHORT, "repeat_last_n": None}
        expected = plain.chat([system, *opening, HELLO], **options)
        assert mine.chat([HELLO]).token_ids == expected.token_ids
        assert len(expected.token_ids) == 5
        # The options of a request have precedence.
        other = {"role": "system", "content": "be long"}
        longer = {**options, "num_predict": 7}
        expected = plain.chat([*opening, other, HELLO], **longer)
        assert mine.chat([other, HELLO], num_predict=7).token_ids == expected.token_ids
    assert snapshot(root) == before


def test_arguments_win_over_the_model_and_the_model_over_the_environment(
    root: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "32")
    put(root, tiny_llama, params={"num_ctx": 1000})
    with chaski.load("mine") as model:
        assert model.context == 256  # as its Modelfile says
    with chaski.load("mine", context=48) as model:
        assert model.context == 48


def test_the_template_of_the_store_is_used(root: Path, tiny_llama: Path) -> None:
    put(root, tiny_llama, template="<{{ .System }}|{{ .Prompt }}>", system="be brief", params=SHORT)
    with chaski.load(tiny_llama) as plain, chaski.load("mine") as mine:
        assert mine.chat_template == "<{{ .System }}|{{ .Prompt }}>"
        assert mine.chat([HELLO]).token_ids == plain.generate("<be brief|hello>", **SHORT).token_ids
        assert mine.chat([HELLO]).prompt_tokens == len(mine.tokenize("<be brief|hello>"))


def test_a_renderer_that_is_not_there(root: Path, tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    layers = {"model": tiny_llama.read_bytes(), "template": b"{{ .Prompt }}"}
    put_by_hand(root, "registry.ollama.ai/library/mine/latest", layers, b'{"renderer":"later"}')
    with caplog.at_level(logging.WARNING), chaski.load(tiny_llama) as plain, chaski.load("mine") as mine:
        assert mine.chat([HELLO], **SHORT).token_ids == plain.chat([HELLO], **SHORT).token_ids
    assert "mine:latest asks for the renderer later" in caplog.text


def test_a_renderer_goes_before_the_template_of_the_file(root: Path, tiny_llama: Path) -> None:
    layers = {"model": tiny_llama.read_bytes(), "template": b"{{ .Prompt }}"}
    put_by_hand(root, "registry.ollama.ai/library/mine/latest", layers, b'{"renderer":"qwen3-coder"}')
    text = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    with chaski.load("mine") as mine:
        asked = [{"role": "user", "content": "hello"}]
        assert mine.chat(asked, **SHORT).prompt_tokens == len(mine.tokenize(text))
        assert mine.chat_template is not None
        assert "<tool_call>" in mine.chat_template


def test_a_renderer_that_nothing_stands_for(root: Path, tmp_path: Path) -> None:
    bare = write_tiny_llama(tmp_path / "bare.gguf", chat_template=None)
    layers = {"model": bare.read_bytes(), "template": b"{{ .Prompt }}"}
    put_by_hand(root, "registry.ollama.ai/library/bare/latest", layers, b'{"renderer":"later"}')
    put_by_hand(root, "registry.ollama.ai/library/known/latest", layers, b'{"renderer":"lfm2"}')
    with chaski.load("known") as model:
        assert "<|im_start|>" in model.prompts.chat_format.render([HELLO])
    with chaski.load("bare") as model:
        assert model.generate("hello", **SHORT).text is not None
        with pytest.raises(chaski.UnsupportedError, match="asks for the renderer 'later'"):
            model.chat([HELLO], **SHORT)


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"top_p": "much"}, SamplingError, "option top_p is 'much'"),
        ({"stop": [1]}, OptionError, "option stop"),
        ({"num_ctx": "8k"}, OptionError, "the model sets num_ctx to '8k'"),
        ({"num_ctx": True}, OptionError, "the model sets num_ctx to True"),
    ],
)
def test_bad_parameters_are_errors(
    parameters: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Defaults.of(StoredModel(None, Path("x.gguf"), parameters=parameters))


def test_a_model_may_ask_for_an_engine(root: Path, tiny_llama: Path) -> None:
    put(root, tiny_llama, params={"engine": "llama.cpp"})
    assert Defaults.of(find_model("mine")).engine == "llama.cpp"
    with pytest.raises(UnsupportedError, match=r"llama\.cpp"):
        chaski.load("mine")
    with chaski.load("mine", engine="native") as model:
        assert model.context == 256


def test_what_cannot_be_done_is_said(caplog: pytest.LogCaptureFixture) -> None:
    path = Path("x.gguf")
    assert Defaults.of(StoredModel(None, path, adapters=(Path("blobs/x"),))).options == {"adapter": ["x"]}
    with caplog.at_level(logging.WARNING):
        Defaults.of(StoredModel(None, path, parameters={"adapter": "x", "dry": 1, "numa": True}))
    assert "x.gguf sets adapter, dry, which this version does not know" in caplog.text
