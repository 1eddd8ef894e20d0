"""Messages survive the way through JSON, and nothing else comes through."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski import errors
from chaski.chat.events import Done, PromptTokens, Text, Thinking, ToolCall
from chaski.chat.requests import Chat, Embed, Fill, Generate, Rank
from chaski.chat.sources import StoredFormat
from chaski.errors import OptionError, WorkerError
from chaski.ml.backend import DeviceMemory, Memory
from chaski.runner.engine.live import LiveSequence, LiveSequences, TokenTotals
from chaski.runner.engine.outputs import Outputs
from chaski.runner.service.cache_picture import CacheKind, CachePicture, CacheSlot
from chaski.runner.service.messages import (
    Describe,
    Detokenize,
    Info,
    LookLive,
    RenderChat,
    String,
    Tokenize,
    TokenizeChat,
    Tokens,
)
from chaski.runner.service.worker import codec
from chaski.runner.service.worker.codec import (
    Cancel,
    Failure,
    Load,
    LoadProgress,
    WireMessage,
    decode,
    encode,
)
from chaski.sample import Sampled, TokenLogprob

DONE = Done(
    reason="stop",
    stop_string="\n\n",
    prompt_tokens=5,
    cached_tokens=4,
    generated_tokens=7,
    dropped_tokens=0,
    load_seconds=0.25,
    prefill_seconds=1e-9,
    decode_seconds=3.0000000000000004,
)
MESSAGES = [
    Load("guide", {"context": 64, "kv_type": None}, 30),
    Cancel(),
    Generate("a prompt \x00 \u2028 \U0001f600", {"seed": 2**64 - 1, "stop": ["a"], "temperature": 0.1}),
    Generate((1, 2, 3), {}),
    Generate("[img-0]", {}, (b"\x00\xff", b"")),
    Chat(({"role": "user", "content": "hello"},), (), {}),
    Chat(({"role": "user", "content": "look", "images": [0]},), (), {}, (b"GIF",), think="low"),
    Chat((), (), {}, stored=StoredFormat("a", "{{ .Prompt }}", parser="qwen3"), context=(1, 2)),
    Fill("a", "b", {}, images=(b"GIF",)),
    Fill("a", "b", {"seed": 1}, draw=3),
    Rank("why?", ("a", "b")),
    RenderChat(Chat(({"role": "user", "content": "hello"},), (), {})),
    TokenizeChat(Chat(({"role": "user", "content": "hello"},), (), {}, (b"GIF",))),
    Thinking("hm", (1,)),
    ToolCall("f", {"b": [1], "a": None}, (1, 2)),
    PromptTokens(3, (1, 2)),
    Failure("ContextLengthError", "too long", (5, 4)),
    Chat(({"role": "user", "content": "hello"},), ({"type": "function"},), {"top_k": 3}),
    Embed(("a text", (1, 2)), truncate=True),
    Tokenize("text", False, True),
    Detokenize((5, 6)),
    Describe(),
    LookLive(),
    LiveSequences(
        seconds=0.5,
        totals=TokenTotals(
            computed=7,
            generated=8,
            cells=1,
            memory=2,
            disk=3,
            dropped=4,
            proposed=6,
            accepted=5,
        ),
        num_sequences=1,
        sequences=(
            LiveSequence(
                number=3,
                slot=None,
                state="waiting",
                prompt_tokens=4,
                cached_tokens=0,
                computed_tokens=0,
                generated_tokens=0,
                dropped_tokens=1,
                proposed_tokens=0,
                accepted_tokens=0,
                seconds=0.25,
            ),
        ),
    ),
    LoadProgress(0.5),
    LoadProgress(1),
    Failure("OptionError", "no"),
    Text("a", (1,)),
    Text(
        "ab", (1, 2), (Sampled(1, -0.1, (TokenLogprob(1, -0.1), TokenLogprob(7, -1e300))), Sampled(2, -0.0))
    ),
    DONE,
    Tokens(()),
    String("text"),
    Info(
        path="/a/b",
        context=5,
        vocab_size=6,
        chat_template=None,
        load_seconds=0.1,
        memory=Memory((DeviceMemory("cpu", 1, 2, 3), DeviceMemory("gpu:0", 4, 5, 6))),
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_come_back_as_they_were(message: WireMessage) -> None:
    number, found = decode(encode(12, message))
    assert number == 12
    assert found == message
    assert type(found) is type(message)


@given(st.text(), st.lists(st.integers(0, 2**31)), st.floats(allow_nan=False))
def test_texts_ids_and_numbers_come_back(text: str, ids: list[int], logprob: float) -> None:
    message = Text(text, tuple(ids), (Sampled(1, logprob),))
    assert decode(encode(0, message)) == (0, message)


def test_text_that_is_half_a_character() -> None:
    assert decode(encode(0, Generate("\ud800", {}))) == (0, Generate("\ud800", {}))


def test_arrays_keep_their_bits() -> None:
    rows = np.array([[1.5, -0.0, np.inf], [1e-45, np.pi, 3]], np.float32)
    _, message = decode(encode(0, Outputs(rows)))
    assert isinstance(message, Outputs)
    assert message.rows.dtype == np.float32
    assert message.rows.tobytes() == rows.tobytes()
    assert message.rows.shape == rows.shape


def test_arrays_by_the_name_of_a_type_statement() -> None:
    extensions = pytest.importorskip("typing_extensions")
    element = TypeVar("element", bound=np.generic)
    array = np.ndarray[tuple[Any, ...], np.dtype[element]]
    named = extensions.TypeAliasType("named", array, type_params=(element,))  # as NumPy 2.5 has NDArray
    rows = np.array([[1.5, -0.0]], np.float32)
    read = codec._reader(named[np.float32])([[1, 2], b64encode(rows.tobytes()).decode()])
    assert (read.dtype, read.tobytes()) == (np.float32, rows.tobytes())


def test_cells_stay_integers() -> None:
    runs = np.array([[0, 2**30 + 1, 0, 3, -1], [1, 5, 0, 2, 64]], np.int32)
    kind = CacheKind("all tokens", False, 2**31 - 1, runs)
    _, message = decode(encode(0, CachePicture((CacheSlot(3, True, None),), (kind,))))
    assert isinstance(message, CachePicture)
    assert message.slots == (CacheSlot(3, True, None),)
    assert message.kinds[0].runs.dtype == np.int32
    assert message.kinds[0].runs.tolist() == runs.tolist()


@pytest.mark.parametrize("value", [object(), b"bytes", {1, 2}, [lambda: 0]])
def test_values_that_cannot_be_sent(value: object) -> None:
    with pytest.raises(OptionError, match="cannot be sent to a worker"):
        encode(1, Chat(({"role": "user", "content": value},), (), {}))


def test_what_is_nested_too_deep_cannot_be_sent() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    with pytest.raises(OptionError, match="cannot be sent to a worker"):
        encode(1, Chat((value,), (), {}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{}",
        b"null",
        b"[]",
        b"[1]",
        b"[1, 2]",
        b'[1, "os.system", "ls"]',
        b'[1, ["Text"], "a", [], []]',
        b'["1", "Cancel"]',
        b"[true, " + b'"Cancel"]',
        b'[1, "Cancel", 2]',
        b'[1, "Text", "a", [], [], []]',
        b'[1, "Text", "a", []]',
        b'[1, "Text", 5, [], []]',
        b'[1, "Text", "a", [1.0], []]',
        b'[1, "Text", "a", [true], []]',
        b'[1, "Text", "a", {"0": 1}, []]',
        b'[1, "Text", "a", [1], [[1, 0.5]]]',
        b'[1, "Generate", 5, {}]',
        b'[1, "Generate", null, {}]',
        b'[1, "Generate", "a", []]',
        b'[1, "LoadProgress", "0.5"]',
        b'[1, "Outputs", [[1, 1], "AAAA"]]',
        b'[1, "Outputs", [[1, 1], "no base64"]]',
        b'[1, "Outputs", 7]',
        encode(1, DONE).replace(b'"stop"', b'"because"'),
        b"[" * 100_000,
        b"[1" + b"0" * 100_000 + b', "Cancel"]',
    ],
    ids=lambda data: data[:24].decode("ascii", "replace"),
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(WorkerError, match="is not one"):
        decode(data)


@given(st.binary())
def test_any_bytes_are_refused_in_the_same_way(data: bytes) -> None:
    with pytest.raises(WorkerError):
        decode(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from([type(message).__name__ for message in MESSAGES]),
)
def test_any_fields_make_a_message_or_are_refused(value: object, tag: str) -> None:
    fields = value if isinstance(value, list) else [value]
    try:
        _, message = decode(json.dumps([1, tag, *fields]).encode())
    except WorkerError:
        return
    assert type(message).__name__ == tag


@pytest.mark.parametrize("name", errors.__all__)
def test_errors_keep_their_class(name: str) -> None:
    error = getattr(errors, name)("what, where, what to do")
    found = Failure.of(error).error
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_other_errors_are_the_workers() -> None:
    found = Failure.of(ZeroDivisionError("by zero")).error
    assert type(found) is WorkerError
    assert "ZeroDivisionError('by zero')" in str(found)


@pytest.mark.parametrize("kind", ["SystemExit", "annotations", "__builtins__", "Exception"])
def test_only_our_errors_are_made(kind: str) -> None:
    assert type(Failure(kind, "text").error) is WorkerError
