"""The token totals of an engine since its start equal the sums over its answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import chaski
from chaski.chat.events import Done
from chaski.runner.engine.live import TokenTotals
from chaski.runner.prefix import naming, tiers

PROMPT = list(range(5, 45))
OPTIONS: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


def told(done: Done) -> TokenTotals:
    tiers = done.cached_by_tier
    return TokenTotals(
        computed=done.prompt_tokens - done.cached_tokens,
        generated=done.generated_tokens,
        cells=tiers["cells"],
        memory=tiers["memory"],
        disk=tiers["disk"],
        dropped=done.dropped_tokens + done.shifted_tokens,
        proposed=done.proposed_tokens,
        accepted=done.accepted_tokens,
    )


def test_a_total_is_the_sum_of_answers(tiny_llama: Path) -> None:
    with (
        patch.object(naming, "BLOCK", 16),
        patch.object(tiers, "_FEWEST", 1),
        chaski.load(tiny_llama, context=64, parallel=2, draft=tiny_llama, prompt_cache="memory") as model,
    ):
        parts = []
        for prompt, length in ((PROMPT, 8), (PROMPT, 8), (PROMPT[::-1], 8), (PROMPT[3:], 8), (PROMPT, 60)):
            parts.append(model.generate(prompt, num_predict=length, **OPTIONS).done)
            both = model.generate_many([prompt, prompt[::-1]], num_predict=4, **OPTIONS)
            parts += [answer.done for answer in both]
        expected = TokenTotals.together(map(told, parts))
        assert model.engine.live().totals == expected
    assert min(expected.cells, expected.memory, expected.dropped, expected.accepted) > 0
    assert expected.proposed >= expected.accepted
