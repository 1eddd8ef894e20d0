from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from chaski.chat.events import Done, Event, PromptTokens, Text, Thinking, ToolCall
from chaski.cluster.resuming import Delivered
from chaski.errors import ComputationError

DONE = Done(
    reason="stop",
    prompt_tokens=1,
    cached_tokens=0,
    generated_tokens=9,
    dropped_tokens=0,
    load_seconds=0,
    prefill_seconds=0,
    decode_seconds=0,
)
ANSWER: list[Event] = [
    PromptTokens(3, (7, 8, 9)),
    Thinking("so ", (1,)),
    Thinking("it is", (2, 3)),
    Text("", (4,)),
    Text("é be", (5,)),
    Text("gins", (6, 7)),
    ToolCall("add", {"a": 1}, (8, 9)),
    Text(" and ends", (10,)),
    DONE,
]


def cut(events: Sequence[Event], chance: random.Random) -> list[Event]:
    """Return the same answer in other pieces: join neighbours of a kind, and cut them at tokens again."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Text | Thinking) and type(last) is type(event) and chance.random() < 0.5:
            assert isinstance(last, Text | Thinking)
            found[-1] = type(event)(last.text + event.text, last.token_ids + event.token_ids)
        else:
            found.append(event)
    return found


def content(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """Return the content of events for a reader, with adjacent pieces of one kind joined."""
    found: list[list[object]] = []
    for event in events:
        if isinstance(event, Text | Thinking):
            if found and found[-1][0] is type(event):
                found[-1][1] = f"{found[-1][1]}{event.text}"
                found[-1][2] = (*found[-1][2], *event.token_ids)  # type: ignore[misc]
            else:
                found.append([type(event), event.text, event.token_ids])
        else:
            found.append([event])
    return [tuple(each) for each in found]


@pytest.mark.parametrize("seed", range(100))
def test_a_reader_gets_an_answer_once_however_often_it_begins_again(seed: int) -> None:
    chance = random.Random(seed)
    delivered = Delivered()
    seen: list[Event] = []
    while not seen or seen[-1] is not DONE:
        events = cut(ANSWER, chance)
        events = events if chance.random() < 0.3 else events[: chance.randrange(len(events))]
        delivered.restart()
        for event in events:
            seen += delivered.new(event)
    assert content(seen) == content(ANSWER)
    assert delivered.token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize(
    "other",
    [
        [Text("hellp", (1, 2))],
        [Thinking("hello", (1, 2))],
        [Text("hel", (1,)), DONE],
        [Text("hel", (1,)), ToolCall("add", {})],
        [Text("hello there", (1,))],
    ],
)
def test_another_answer_is_an_error(other: list[Event]) -> None:
    delivered = Delivered()
    assert list(delivered.new(Text("hello", (1, 2))))
    delivered.restart()
    with pytest.raises(ComputationError, match="same version"):
        _ = [new for event in other for new in delivered.new(event)]
