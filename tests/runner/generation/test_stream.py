"""Stop strings and the pairing of text with tokens, against a definition that sees the whole text at once."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski.chat.events import Text
from chaski.errors import OptionError
from chaski.runner.generation.stream import PieceStream, StopStrings, TokenText
from chaski.sample import Sampled, TokenLogprob


def cut_of(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return the begin of the first complete stop string, and the string; of several, the longest."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return end - len(longest), longest
    return None


def run(texts: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str | None]:
    machine = StopStrings(stops)
    shown = []
    for text in texts:
        part, is_stopped = machine.feed(text)
        shown.append(part)
        if is_stopped:
            return shown, machine.found
    return [*shown, machine.flush()], machine.found


def pieces_of(texts: Sequence[str]) -> list[TokenText]:
    return [TokenText(text, Sampled(100 + index)) for index, text in enumerate(texts)]


def run_pieces(texts: Sequence[str], stops: Sequence[str], tail: str = "") -> tuple[list[Text], PieceStream]:
    stream = PieceStream(stops)
    events = []
    for piece in pieces_of(texts):
        event, is_stopped = stream.feed(piece)
        events.append(event)
        if is_stopped:
            break
    else:
        events.append(stream.flush(tail))
    return [event for event in events if event is not None], stream


def joined(events: Sequence[Text]) -> tuple[str, list[int]]:
    ids = itertools.chain.from_iterable(event.token_ids for event in events)
    return "".join(event.text for event in events), list(ids)


# Few letters, so that stop strings are found, nearly found, and overlap.
texts_strategy = st.lists(st.text("abc", max_size=4), max_size=12)
stops_strategy = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@given(texts_strategy, stops_strategy)
def test_any_split_gives_what_the_whole_text_gives(texts: list[str], stops: list[str]) -> None:
    text = "".join(texts)
    cut = cut_of(text, stops)
    shown, found = run(texts, stops)
    assert ("".join(shown), found) == ((text, None) if cut is None else (text[: cut[0]], cut[1]))


@given(texts_strategy, stops_strategy)
def test_no_more_is_held_back_than_could_begin_a_stop_string(texts: list[str], stops: list[str]) -> None:
    machine = StopStrings(stops)
    text = shown = ""
    for part in texts:
        new, is_stopped = machine.feed(part)
        text, shown = text + part, shown + new
        if is_stopped:
            return
        held = text[len(shown) :]
        assert text == shown + held
        longest = max((len(p) for s in stops for p in prefixes(s) if text.endswith(p)), default=0)
        assert len(held) == longest


def prefixes(stop: str) -> list[str]:
    return [stop[:length] for length in range(1, len(stop))]


@pytest.mark.parametrize(
    ("texts", "stops", "shown", "found"),
    [
        (["one STOP two"], ["STOP"], ["one "], "STOP"),
        (["one ST", "OP two"], ["STOP"], ["one ", ""], "STOP"),
        (["one ST", "AR two"], ["STOP"], ["one ", "STAR two", ""], None),
        (["one ST"], ["STOP"], ["one ", "ST"], None),
        (["STOP"], ["STOP"], [""], "STOP"),
        # The earliest in the text, not the first in the list.
        (["a b c"], ["c", "b"], ["a "], "b"),
        # The first complete string wins over the first begun one, so that the answer need not continue to
        # decide.
        (["xabcd"], ["abcd", "bc"], ["xa"], "bc"),
        # The longest of those that complete with the same character.
        (["xabc"], ["c", "abc", "bc"], ["x"], "abc"),
        # The held text falls back to a shorter beginning, not to none.
        (["aab", "aac"], ["aabaac"], ["", ""], "aabaac"),
        (["aaab"], ["aab"], ["a"], "aab"),
        (["\u00e9\U0001f600", "\u597d"], ["\U0001f600\u597d"], ["\u00e9", ""], "\U0001f600\u597d"),
        (["text"], [], ["text", ""], None),
    ],
)
def test_stop_strings(texts: list[str], stops: list[str], shown: list[str], found: str | None) -> None:
    assert run(texts, stops) == (shown, found)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(OptionError, match="option stop holds an empty string"):
        StopStrings(["a", ""])


def test_time_is_linear_in_the_text() -> None:
    # Every position of the text begins a match that fails 1000 characters later.
    stop = "a" * 1000 + "b"
    start = process_time()
    run(["a" * 100] * 2000, [stop])
    assert process_time() - start < 2


# (tokens, stop string, text, number of remaining tokens); the first five are the reference's data.
TRUNCATIONS = [
    (["hello", "world"], "world", "hello", 1),
    (["hello", "wor"], "or", "hellow", 2),
    (["Hello", " there", "!"], "!", "Hello there", 2),
    (["Hello", " the", "re!"], "there!", "Hello ", 2),
    (["hello", " wor"], "llo w", "he", 1),
    # The first bytes of a character that the stop string removed are dropped with it.
    (["hi", "", "", "\u4f60"], "\u4f60", "hi", 1),
    (["hi", "", "", "\u4f60", "!"], "!", "hi\u4f60", 4),
    (["st", "op"], "stop", "", 0),
]


@pytest.mark.parametrize(("texts", "stop", "text", "num_tokens"), TRUNCATIONS)
def test_a_stop_string_drops_the_tokens_that_it_removed_whole(
    texts: list[str], stop: str, text: str, num_tokens: int
) -> None:
    events, stream = run_pieces(texts, [stop])
    assert joined(events) == (text, [100 + index for index in range(num_tokens)])
    assert stream.num_pending == len(texts) - num_tokens
    assert stream.stop_string == stop


@given(texts_strategy, stops_strategy)
def test_tokens_that_remain_are_those_that_begin_in_the_text_that_remains(
    texts: list[str], stops: list[str]
) -> None:
    events, stream = run_pieces(texts, stops)
    text = "".join(texts)
    cut = cut_of(text, stops)
    starts = list(itertools.accumulate(map(len, texts), initial=0))[:-1]
    if cut is None:
        assert joined(events) == (text, [100 + index for index in range(len(texts))])
    else:
        ids = [100 + index for index, start in enumerate(starts) if start < cut[0]]
        assert joined(events) == (text[: cut[0]], ids)
    assert all(event.text or event is events[-1] for event in events)
    assert stream.stop_string == (None if cut is None else cut[1])


def test_a_token_comes_with_its_first_character() -> None:
    events, _ = run_pieces(["a S", "T", "x"], ["STOP"])
    assert events == [Text("a ", (100,)), Text("STx", (101, 102))]


def test_flush_ends_with_what_the_decoder_held() -> None:
    events, _ = run_pieces(["a", ""], [], tail="\ufffd")
    assert events == [Text("a", (100,)), Text("\ufffd", (101,))]


def test_a_stop_string_in_the_last_of_the_decoder_counts() -> None:
    events, stream = run_pieces(["a", ""], ["\ufffd"], tail="\ufffd")
    assert joined(events) == ("a", [100])
    assert (stream.stop_string, stream.num_pending) == ("\ufffd", 1)


def test_logprobs_follow_their_tokens() -> None:
    first = Sampled(7, -0.5, (TokenLogprob(7, -0.5), TokenLogprob(9, -1.0)))
    second = Sampled(8, -0.25)
    stream = PieceStream(["end"])
    assert stream.feed(TokenText("e", first)) == (None, False)
    assert stream.feed(TokenText("xe", second)) == (Text("ex", (7, 8), (first, second)), False)
    assert stream.feed(TokenText("nd", Sampled(9, -2.0))) == (None, True)
    assert stream.num_pending == 1


def test_a_stop_string_may_be_kept_and_may_come_too_early() -> None:
    stops = StopStrings(["end"], keeps=True)
    assert stops.feed("an e") == ("an ", False)
    assert stops.feed("nd of it") == ("end", True)
    pieces = PieceStream(["ab"], keeps_stop=True)
    early, is_stopped = pieces.feed(TokenText("ab a", Sampled(1)), may_stop=False)
    assert early is not None
    assert (early.text, is_stopped) == ("ab a", False)
    later, is_stopped = pieces.feed(TokenText("b ab.", Sampled(2)))
    assert later is not None
    assert (later.text, later.token_ids, is_stopped) == ("b ab", (2,), True)
