"""A GPU computes the bits of the cpu backend for each family that has a converter."""

from __future__ import annotations

import pytest

import chaski
from tests import families
from tests.cuda.emulated import NAME

NAMES = {name.partition("/")[0]: name for name in sorted(families.VARIANTS, reverse=True)}
# They have most of the operations. The others run with the slow tests: the host compiles programs for each.
USUAL = {
    *("bloom", "deepseek2", "deepseek4", "falcon_h1", "glm5_next", "jamba", "kimi_linear", "mamba2"),
    *("minimax_m3", "qwen4exp", "rwkv7", "stablelm"),
}


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.long if name in USUAL else pytest.mark.slow) for name in NAMES],
)
def test_a_family_has_the_bits_of_the_processor(family: str) -> None:
    path, prompt = families.converted(NAMES[family]), [7 * i % 290 + 3 for i in range(45)]
    found = []
    for backend in ("cpu", NAME):
        with chaski.load(path, threads=1, context=128, backend=backend) as llm:
            if "embedding" in llm.capabilities:
                found.append((llm.embed(["some text"]).tobytes(), None))
            else:
                logits = llm.logits(prompt).tobytes()
                found.append((logits, llm.generate(prompt[:4], num_predict=12, temperature=0).token_ids))
    assert found[0] == found[1]
