"""`Answers` by itself: whose they are, who follows them, and when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import pytest

from chaski.chat.events import Text, Thinking, ToolCall
from chaski.errors import BusyError, OptionError, ResponseNotFoundError, WorkerError
from chaski.server.answering.answers import Answer, AnswerExistsError, Answers
from chaski.server.answering.events import Delta, Score, ServiceEvents, TopScore
from tests.server.test_dialects import finish

ID, OTHER = "i" * 22, "o" * 64


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time also passes when a test says so."""

    skipped = 0.0

    def time(self) -> float:
        return super().time() + self.skipped


async def skip(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Clock)
    loop.skipped += seconds
    await settle()


async def settle() -> None:
    """Let all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=Clock) as runner:
            runner.run(test(*arguments, **named))

    return run


SCORE = Score(TopScore("hi", b"hi", -0.5))


class Source:
    """An answer whose pieces, each with a score, come when the test adds them; None ends it."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self.was_closed = False

    async def say(self, text: str | None) -> None:
        self._pieces.put_nowait(text)
        await settle()

    async def events(self) -> ServiceEvents:
        try:
            while (text := await self._pieces.get()) is not None:
                yield Delta([Text(text)], [SCORE])
        finally:
            self.was_closed = True


async def told(*events: Any) -> ServiceEvents:
    for event in events:
        if isinstance(event, Exception):
            raise event
        yield event


def texts(events: Sequence[Any]) -> str:
    return "".join(piece.text for event in events for piece in event.pieces)


@in_a_loop
async def test_an_answer_is_its_owner_s() -> None:
    answers = Answers()
    mine = answers.begin("me", ID, "a", told(Delta([Text("mine")])))
    yours = answers.begin("you", ID, "b", told(Delta([Text("yours")])))
    assert (mine.model, yours.model) == ("a", "b")
    assert answers.get("me", ID) is mine
    assert answers.get("you", ID) is yours
    for owner, answer_id in (("they", ID), ("me", OTHER), (ID, "me"), ("", ID)):
        with pytest.raises(
            ResponseNotFoundError, match=rf"^answer '{answer_id}' not found: it has expired or"
        ):
            answers.get(owner, answer_id)
        with pytest.raises(ResponseNotFoundError):
            await anext(answers.follow(owner, answer_id))
        with pytest.raises(ResponseNotFoundError):
            await answers.stop(owner, answer_id)
    assert texts([event async for event in answers.follow("me", ID)]) == "mine"
    assert texts([event async for event in answers.follow("you", ID)]) == "yours"
    await answers.stop("you", ID)
    assert answers.get("me", ID) is mine


@in_a_loop
async def test_ids_are_long_and_used_once() -> None:
    answers = Answers()
    for answer_id in ("a" * 21, "a" * 65, f"{'a' * 22}\n", f"{'a' * 22}/", f" {'a' * 22}"):
        with pytest.raises(
            OptionError, match=r"^answer_id must consist of 22 to 64 random letters, digits, - or _$"
        ):
            answers.begin("me", answer_id, "m", told())
    for answer_id in ("a" * 22, "-_09azAZ" * 8):
        answers.begin("me", answer_id, "m", told())
        with pytest.raises(
            AnswerExistsError, match=rf"^answer_id '{answer_id}' is already in use; draw another"
        ):
            answers.begin("me", answer_id, "m", told())
    await answers.close()


@in_a_loop
async def test_every_follower_gets_the_whole_answer_once() -> None:
    call = ToolCall("f", {"x": 1})
    end = finish()
    events = [
        Delta([Thinking("h"), Thinking("m")]),
        Delta([Text("hi")], [SCORE]),
        Delta([Text(" ünd\ud800"), call]),
        end,
    ]
    answers = Answers()
    answers.begin("me", ID, "m", told(*events))
    for _ in range(2):
        *deltas, last = [event async for event in answers.follow("me", ID)]
        assert last is end
        pieces = [piece for delta in deltas for piece in delta.pieces]
        assert "".join(piece.text for piece in pieces if isinstance(piece, Thinking)) == "hm"
        assert (
            "".join(piece.text for piece in pieces if isinstance(piece, Text)) == "hi ünd?"
        )  # half a character
        assert [piece for piece in pieces if isinstance(piece, ToolCall)] == [call]
        assert [each for delta in deltas for each in delta.scores] == [SCORE]


@in_a_loop
async def test_a_follower_gets_what_comes_as_it_comes() -> None:
    answers, source = Answers(), Source()
    answers.begin("me", ID, "m", source.events())
    early = answers.follow("me", ID)
    for text in ("a", "bc", "d"):
        await source.say(text)
        assert await anext(early) == Delta([Text(text)], [SCORE])
    late = answers.follow("me", ID)
    assert await anext(late) == Delta([Text("abcd")], [SCORE] * 3)
    waiting = asyncio.create_task(anext(early, None))
    await source.say("e")
    assert texts([await waiting]) == texts([await anext(late)]) == "e"
    await source.say(None)
    assert [event async for event in early] == [event async for event in late] == []


@in_a_loop
async def test_a_follower_gets_the_error_after_the_text() -> None:
    answers = Answers()
    answer = answers.begin("me", ID, "m", told(Delta([Text("so")]), WorkerError("it died")))
    for _ in range(2):
        follower = answers.follow("me", ID)
        assert texts([await anext(follower)]) == "so"
        with pytest.raises(WorkerError, match="it died"):
            await anext(follower)
    assert answer.is_over


@in_a_loop
async def test_an_answer_runs_as_long_as_somebody_follows_and_a_minute_more() -> None:
    answers, source = Answers(), Source()
    answer = answers.begin("me", ID, "m", source.events())
    await skip(59)
    first, second = answers.follow("me", ID), answers.follow("me", ID)
    await source.say("a")
    assert texts([await anext(first)]) == texts([await anext(second)]) == "a"
    assert answer.followers == 2
    await first.aclose()
    await skip(3600)
    assert (answer.followers, answer.is_over) == (1, False)
    await second.aclose()
    await skip(59)
    third = answers.follow("me", ID)
    assert texts([await anext(third)]) == "a"
    await skip(59)
    await third.aclose()
    await skip(59)
    assert answers.get("me", ID) is answer
    assert not source.was_closed
    await skip(2)
    assert source.was_closed
    assert answer.is_over
    with pytest.raises(ResponseNotFoundError):
        answers.get("me", ID)


@in_a_loop
async def test_an_answer_that_nobody_follows_ends() -> None:
    for answers, patience in ((Answers(), 60), (Answers(patience=5), 5)):
        source = Source()
        answers.begin("me", ID, "m", source.events())
        await source.say("a")
        await skip(patience - 1)
        assert not source.was_closed
        await skip(2)
        assert source.was_closed


@in_a_loop
async def test_an_ended_answer_is_kept_for_ten_minutes_whoever_reads_it() -> None:
    for answers, seconds in ((Answers(), 600), (Answers(kept_seconds=100), 100)):
        source = Source()
        answers.begin("me", ID, "m", source.events())
        follower = answers.follow("me", ID)
        await source.say("a")
        assert texts([await anext(follower)]) == "a"
        await source.say(None)
        assert [event async for event in follower] == []
        await skip(seconds - 1)  # longer than the patience with a running one
        assert texts([event async for event in answers.follow("me", ID)]) == "a"
        await skip(2)
        with pytest.raises(ResponseNotFoundError):
            answers.get("me", ID)


@in_a_loop
async def test_a_stopped_answer_makes_its_id_free() -> None:
    answers, source = Answers(patience=1000), Source()
    answers.begin("me", ID, "m", source.events())
    await source.say("a")
    await answers.stop("me", ID)
    assert source.was_closed
    again = answers.begin("me", ID, "m", Source().events())
    await skip(700)  # the time of the first one does not end the second one
    assert answers.get("me", ID) is again
    await answers.close()
    assert again.is_over


@in_a_loop
async def test_close_ends_all_answers() -> None:
    answers, sources = Answers(), [Source() for _ in range(3)]
    for owner, source in zip("abc", sources, strict=True):
        answers.begin(owner, ID, "m", source.events())
        await source.say("x")
    await answers.close()
    assert all(source.was_closed for source in sources)
    for owner in "abc":
        with pytest.raises(ResponseNotFoundError):
            answers.get(owner, ID)


def kept(answers: Answers, names: str) -> str:
    """Return the names of the answers that are still there."""
    return "".join(name for name in names if ("me", name * 22) in answers._found)


@in_a_loop
async def test_the_oldest_ended_answer_makes_room() -> None:
    answers, running = Answers(max_count=4), Source()
    answers.begin("me", "a" * 22, "m", running.events())
    for name in "bcd":
        answers.begin("me", name * 22, "m", told(Delta([Text("x")])))
        assert [event async for event in answers.follow("me", name * 22)]
    reader = answers.follow("me", "b" * 22)
    await anext(reader)
    answers.begin("me", "e" * 22, "m", Source().events())
    assert kept(answers, "abcde") == "abde"  # a runs, and somebody reads b
    answers.begin("me", "f" * 22, "m", Source().events())
    assert kept(answers, "abdef") == "abef"
    with pytest.raises(
        BusyError, match=r"^server busy: it keeps too many answers for clients that may reconnect"
    ):
        answers.begin("me", "g" * 22, "m", told())
    await reader.aclose()
    answers.begin("me", "g" * 22, "m", told())
    assert kept(answers, "abefg") == "aefg"
    await answers.close()


@in_a_loop
async def test_texts_and_scores_take_room() -> None:
    """A score counts 300 bytes, and so does each of the other likely tokens."""
    answers = Answers(max_bytes=1000)
    top = [TopScore("b", b"b", -1.0)] * 2
    for name, delta, size in (
        ("a", Delta([Thinking("ü" * 20), Text("x" * 60)]), 100),
        ("b", Delta([], [Score(TopScore("a", b"a", -1.0))]), 300),
        ("c", Delta([], [Score(TopScore("a", b"a", -1.0), top)]), 900),
    ):
        answer = answers.begin("me", name * 22, "m", told(delta))
        assert [event async for event in answers.follow("me", name * 22)]
        assert answer.size == size
    assert Answer("m").size == 0
    answers.begin("me", "d" * 22, "m", told())  # 1300 bytes are too many
    assert kept(answers, "abcd") == "cd"
    answers.begin("me", "e" * 22, "m", told(Delta([Text("x" * 100)])))
    assert [event async for event in answers.follow("me", "e" * 22)]
    answers.begin("me", "f" * 22, "m", told())  # 1000 bytes are not
    assert kept(answers, "cdef") == "cdef"
    await answers.close()
