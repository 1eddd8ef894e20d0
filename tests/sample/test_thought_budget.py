"""The count of tokens of thoughts, and the tokens that end a thought whose budget is spent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chaski.sample import Sampler, SamplingOptions
from chaski.sample.lark import AnswerPrefix, end_mark
from chaski.sample.thought_budget import ThoughtBudget, ends_of_thought, without_answer
from tests.sample.letters import logits_of

CONTROLS = {"<end>": 900}
THINK = AnswerPrefix(opening="<t>", closing="</t>")
END = [990, 991]


def budget(num_tokens: int, prefix: AnswerPrefix = THINK, **fields: Any) -> ThoughtBudget:
    """Return a budget over a vocabulary of bytes; token 900 is a control token, 901 spells `<t>`."""
    spelled = {900: b"<end>", 901: b"<t>", 990: b"</t>", 991: b"\n"}
    given = AnswerPrefix(**{name: getattr(prefix, name) for name in prefix.__struct_fields__} | fields)
    return ThoughtBudget(
        given, num_tokens, [END], CONTROLS, lambda token: spelled.get(token) or bytes([token])
    )


def written(limit: ThoughtBudget, text: str | bytes, count: int = 100) -> bytes:
    """Return the text of at most `count` tokens if the model, where it is free, writes `text` by bytes."""
    free = list(text.encode() if isinstance(text, str) else text)
    found = b""
    for _ in range(count):
        token = limit.forced
        if token is None:
            if not free:
                break
            token = free.pop(0)
        limit.accept(token)
        found += {990: b"</t>", 991: b"\n", 900: b"<end>"}.get(token) or bytes([token])
    return found


@pytest.mark.parametrize("num_tokens", range(4))
def test_a_thought_of_the_prompt_has_so_many_tokens(num_tokens: int) -> None:
    text = written(budget(num_tokens, is_open=True), "abcdef")
    assert text == b"abc"[:num_tokens] + b"</t>\n" + b"abcdef"[num_tokens:]


def test_a_thought_that_ends_in_time_is_left_alone() -> None:
    for num_tokens in (7, 8, 100):
        assert written(budget(num_tokens, is_open=True), "abc</t>def") == b"abc</t>def"


def test_the_opening_counts_and_is_never_cut() -> None:
    assert written(budget(5), "<t>abcdef") == b"<t>ab</t>\ncdef"
    assert written(budget(0), "<t>abcdef") == b"<t></t>\nabcdef"
    assert written(budget(5), "\n <t>abcdef") == b"\n <t></t>\nabcdef", "blanks before it are tokens too"


def test_an_answer_without_a_thought_is_left_alone() -> None:
    for text in ("abc<t>defghijkl", "<tea> for <t>wo", "</t>abc"):
        assert written(budget(1), text) == text.encode()


def test_all_thoughts_share_the_budget() -> None:
    text = "<t>ab</t>so <t>cdefgh"
    assert written(budget(11, repeats=True), text) == b"<t>ab</t>so <t>cd</t>\nefgh"
    assert written(budget(3, repeats=True), "<t>ab<t>cd") == b"<t></t>\nab<t></t>\ncd"
    assert written(budget(11), text) == text.encode(), "only the first one is a thought"


def test_a_control_token_ends_a_thought_at_once() -> None:
    """Its message goes on with a header, during which the budget may be spent."""
    limit = budget(3, closing="<end><start>assistant", is_open=True)
    for token in (97, 98, 900, 97, 97, 97):
        assert limit.forced is None
        limit.accept(token)
    assert end_mark("<end><start>assistant", CONTROLS) == "<end>"
    assert end_mark("</t>", CONTROLS) == "</t>"


def test_a_character_is_not_cut() -> None:
    text = written(budget(2, is_open=True), "añb")
    assert text == "añ</t>\nb".encode()
    broken = written(budget(1, is_open=True), b"\xf0ab")
    assert broken == b"\xf0a</t>\nb"


def test_a_token_may_hold_an_opening_and_more() -> None:
    limit = budget(1)
    limit.accept(901)
    assert limit.forced == 990


def test_ends_of_thoughts() -> None:
    shown = AnswerPrefix(opening="<t>", closing="</t>", end="\n</t>\n\n")
    assert list(ends_of_thought(shown, False)) == ["\n</t>\n\n", "</t>"]
    assert list(ends_of_thought(shown, True)) == ["\n</t>\n\n", "</t>"]
    headed = AnswerPrefix(opening="<t>", closing="</t>", header="<say>", end="</t><say>")
    assert next(ends_of_thought(headed, True)) == "</t><say>"
    longer = AnswerPrefix(opening="<t>", closing="</t>", end="</t><answer>")
    assert next(ends_of_thought(longer, False)) == "</t><answer>"
    assert list(ends_of_thought(longer, True)) == ["</t>"], "a format begins right after the closing text"


def test_a_call_may_follow_the_first_thought() -> None:
    headed = AnswerPrefix(opening="<t>", closing="</t>", repeats=True, is_open=True)
    limit = ThoughtBudget(headed, 1, [[990], [990, 991]], CONTROLS, lambda token: bytes([token % 256]))
    assert written(limit, "abc<t>def<t>g") == b"a</t>bc<t></t>\ndef<t></t>\ng"
    assert without_answer("\n</t>\n\n", headed) == "\n</t>\n\n"
    assert without_answer("x</t><say>", headed) == "x</t>"


def test_a_forced_token_takes_no_random_number_and_has_the_models_probability() -> None:
    options = SamplingOptions(temperature=1.0, seed=5, logprobs=True, top_logprobs=2, repeat_penalty=1.5)
    plain, forcing = Sampler(options), Sampler(options)
    forced = forcing.force(logits_of(7), 3)
    assert [plain.sample(logits_of(i)).token_id for i in range(20)] == [
        forcing.sample(logits_of(i)).token_id for i in range(20)
    ]
    logits = logits_of(7).astype(np.float64)
    assert forced.logprob == pytest.approx(logits[3] - np.log(np.exp(logits).sum()), abs=1e-5)
    assert forced.top_logprobs is not None
    assert forced.top_logprobs[0].token_id == int(logits.argmax())


def test_penalties_see_forced_tokens() -> None:
    sampler = Sampler(SamplingOptions(temperature=0, repeat_penalty=100.0))
    best = sampler.sample(logits_of(1)).token_id
    sampler.accept(sampler.force(logits_of(2), best).token_id)
    assert sampler.sample(logits_of(1)).token_id != best
