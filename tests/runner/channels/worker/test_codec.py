"""Messages survive encoding, and bytes that are not a message are refused."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import msgpack

from chaski import errors
from chaski.chat.events import Done, PromptTokens, Text, Thinking, ToolCall
from chaski.chat.requests import Chat, Embed, Fill, Generate, Rank
from chaski.chat.sources import StoredFormat
from chaski.errors import OptionError, TemplateError, WorkerError
from chaski.ml.backend import DeviceMemory, Memory
from chaski.runner.channels.cache_picture import CacheKind, CachePicture, CacheSlot
from chaski.runner.channels.messages import (
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
from chaski.runner.channels.worker.codec import (
    Cancel,
    Failure,
    Load,
    LoadProgress,
    WireMessage,
    decode,
    encode,
    encode_call,
    numbered,
    protocol,
)
from chaski.runner.engine.live import LiveSequence, LiveSequences, TokenTotals
from chaski.runner.engine.outputs import Outputs
from chaski.sample import Sampled, TokenLogprob
from chaski.text.template.meter import TemplateLimitError

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


@pytest.mark.parametrize(
    "message",
    [
        Generate("\ud800", {"stop": ["\udfff"]}, (b"\x00\xff",)),
        ToolCall("multiply", {"a": 10**40, "b": -(2**63) - 1}, (1, 2)),
        Chat(({"role": "user", "content": "\ud83d", "images": [0]},), (), {"seed": 2**64}, (b"GIF",)),
        Tokenize("\udc00", images=(b"\xff\xfe",)),
    ],
)
def test_values_that_message_pack_lacks(message: WireMessage) -> None:
    assert decode(encode(7, message)) == (7, message)


def test_numbers_of_any_kind_keep_their_bits() -> None:
    values = [-0.0, 1e-323, float("inf"), 2**64 - 1, -(2**63), True, None]
    _, message = decode(encode(0, ToolCall("f", {"values": values})))
    assert isinstance(message, ToolCall)
    assert repr(message.arguments["values"]) == repr(values)


class Name(str):
    """A string of another class."""


class Color(IntEnum):
    """An integer of another class."""

    RED = 1


def test_values_of_subclasses_and_read_only_mappings() -> None:
    options = MappingProxyType({"temperature": np.float64(0.1), "stop": [Name("a")], "seed": Color.RED})
    _, message = decode(encode(0, Generate("", {"given": options})))
    assert isinstance(message, Generate)
    assert message.options == {"given": {"temperature": 0.1, "stop": ["a"], "seed": 1}}


def test_arrays_keep_their_bits() -> None:
    rows = np.array([[1.5, -0.0, np.inf], [1e-45, np.pi, 3]], np.float32)
    _, message = decode(encode(0, Outputs(rows)))
    assert isinstance(message, Outputs)
    assert message.rows.dtype == np.float32
    assert message.rows.tobytes() == rows.tobytes()
    assert message.rows.shape == rows.shape


def test_arrays_in_a_message_that_is_encoded_as_json() -> None:
    rows = np.array([[1.5, -0.0]], np.float32)
    data = json.dumps([1, ["Outputs", [[1, 2], b64encode(rows.tobytes()).decode()], 0]]).encode()
    _, message = decode(data)
    assert isinstance(message, Outputs)
    assert message.rows.dtype == np.float32
    assert message.rows.tobytes() == rows.tobytes()


def test_cells_stay_integers() -> None:
    runs = np.array([[0, 2**30 + 1, 0, 3, -1], [1, 5, 0, 2, 64]], np.int32)
    kind = CacheKind("all tokens", False, 2**31 - 1, runs)
    _, message = decode(encode(0, CachePicture((CacheSlot(3, True, None),), (kind,))))
    assert isinstance(message, CachePicture)
    assert message.slots == (CacheSlot(3, True, None),)
    assert message.kinds[0].runs.dtype == np.int32
    assert message.kinds[0].runs.tolist() == runs.tolist()


@pytest.mark.parametrize("value", [object(), [lambda: 0], {"a": 1j}, np.datetime64("now")])
def test_values_that_cannot_be_sent(value: object) -> None:
    with pytest.raises(OptionError, match="cannot be sent to a worker"):
        encode(1, Chat(({"role": "user", "content": value},), (), {}))


def test_what_is_nested_too_deep_cannot_be_sent() -> None:
    value: Any = "x"
    for _ in range(100_000):
        value = [value]
    with pytest.raises(OptionError, match="cannot be sent to a worker"):
        encode(1, Chat((value,), (), {}))


MISFITS: list[Any] = [
    {},
    None,
    [],
    [1],
    [1, 2],
    [1, ["Cancel"], 2],
    [1, "Cancel"],
    [1, []],
    [1, ["os.system", "ls"]],
    [1, ["Struct"]],
    [1, ["Sendable"]],
    [1, [["Text"], "a", [], []]],
    ["1", ["Cancel"]],
    [True, ["Cancel"]],
    [1, ["Text"]],
    [1, ["Text", 5, [], []]],
    [1, ["Text", "a", [1.5], []]],
    [1, ["Text", "a", [True], []]],
    [1, ["Text", "a", {"0": 1}, []]],
    [1, ["Text", "a", [1], [[1, "0.5", None]]]],
    [1, {"type": "Text", "text": "a"}],
    [1, ["Generate", 5, {}]],
    [1, ["Generate", None, {}]],
    [1, ["Generate", "a", []]],
    [1, ["LoadProgress", "0.5"]],
    [1, ["Outputs", [[1, 1], "AAAA"]]],
    [1, ["Outputs", [[1, 1], "no base64"]]],
    [1, ["Outputs", [[-1, 0], ""]]],
    [1, ["Outputs", [[2**62, 2**62], ""]]],
    [1, ["Outputs", 7]],
    [1, ["Done", "because", None, 1, 1, 1, 1, 0, 0, 0.0, [], 0, 0, 0, 0, 1.0, 1.0, 1.0]],
]


@pytest.mark.parametrize("value", MISFITS, ids=repr)
@pytest.mark.parametrize("write", [msgpack.encode, msgspec.json.encode], ids=["msgpack", "json"])
def test_what_is_no_message_is_refused(write: Callable[[object], bytes], value: object) -> None:
    with pytest.raises(WorkerError, match="are not a message"):
        decode(write(value))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        encode(1, Cancel())[:-1],
        encode(1, Cancel()) + b"\x00",
        b"[" * 100_000,
        b"\x91" * 100_000,
        b"\x92\x01\x93\xa8Generate\xa1a\x81\xa1b" + b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\x92\x01\xdd\xff\xff\xff\xff",
        b"\x92\x01\xc6\xff\xff\xff\xff",
        b"[1" + b"0" * 100_000 + b',["Cancel"]]',
    ],
    ids=lambda data: repr(data[:16]),
)
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(WorkerError, match="are not a message"):
        decode(data)


@given(
    st.binary()
    | st.binary().map(lambda data: b"[1," + data)
    | st.binary().map(lambda data: b"\x92\x01" + data)
)
def test_any_bytes_are_refused_in_the_same_way(data: bytes) -> None:
    with pytest.raises(WorkerError):
        decode(data)


@pytest.mark.long
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from([type(message).__name__ for message in MESSAGES]),
)
def test_any_fields_make_a_message_or_are_refused(value: object, tag: str) -> None:
    fields = value if isinstance(value, list) else [value]
    try:
        _, message = decode(msgpack.encode([1, [tag, *fields]]))
    except WorkerError:
        return
    assert type(message).__name__ == tag


def test_the_protocol_follows_the_fields_of_all_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {protocol.__wrapped__()}
    for kind in (Text, Cancel, Sampled, DeviceMemory, CacheKind, StoredFormat):
        with monkeypatch.context() as patch:
            for name in kind.__annotations__:
                patch.setitem(kind.__annotations__, name, "object")
            found.add(protocol.__wrapped__())
    assert len(found) == 6, "Cancel has no fields"
    assert protocol() in found
    assert len(protocol()) == 16


WRONG: list[tuple[Any, str]] = [
    (Chat((), (), {}, think=5), "think is 5: expected `bool | str | null`, got `int`"),
    (Tokenize(b"a"), "text is b'a': expected `str`, got `bytes`"),
    (Generate("a", {5: 1}), "options is {5: 1}: expected `str`, got `int`"),  # type: ignore[dict-item]
    (Generate("\ud800", {}, ("a",)), "images is"),
    (TokenizeChat(Chat((), (), {}, draw="a")), "chat is Chat"),
]


@pytest.mark.parametrize(("call", "message"), WRONG, ids=lambda each: each if isinstance(each, str) else "")
def test_a_call_with_a_field_of_another_type_is_not_sent(call: Any, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        encode_call(call)


@pytest.mark.parametrize("number", [0, 1, 200, 70_000, 2**40])
@pytest.mark.parametrize("text", ["plain", "half \ud800"], ids=["msgpack", "json"])
def test_a_call_that_is_encoded_once_takes_any_number(number: int, text: str) -> None:
    call = Generate(text, {"temperature": 0.5})
    assert numbered(number, encode_call(call)) == encode(number, call)
    assert decode(numbered(number, encode_call(call))) == (number, call)


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


def test_an_error_of_a_class_that_is_not_public_arrives_as_its_nearest_one() -> None:
    """It used to arrive as a failure of the worker, which is not the client's fault."""
    _, arrived = decode(encode(1, Failure.of(TemplateLimitError("too much"))))
    assert isinstance(arrived, Failure)
    assert (type(arrived.error), str(arrived.error)) == (TemplateError, "too much")


@pytest.mark.parametrize("number", [-1, 2**63, 2**70])
def test_calls_with_numbers_that_no_reply_can_have_are_refused(number: int) -> None:
    """Found by fuzzing: the reply could not be encoded, which ended the process."""
    data = encode(3, Text("\ud800")).replace(b"[3,", f"[{number},".encode(), 1)
    with pytest.raises(WorkerError, match="not a message"):
        decode(data)
