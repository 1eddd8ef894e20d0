"""The proposals of Gemma 4's assistants against those of transformers, after the same prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.model.token_choice import NearClusters, TopLogit
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.own_heads import OwnSpeculator
from chaski.runner.speculation.speculator import PayingLength
from tests.backends import BACKENDS
from tests.convert.checkpoints import DATA, expected

TARGETS = {"gemma4-assistant": "gemma4", "gemma4-small-assistant": "gemma4-small"}
PROPOSED = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assistants")
    for name in (*TARGETS, *TARGETS.values()):
        convert(DATA / name, folder / f"{name}.gguf", "F32")
    return folder


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return the logits of proposed tokens; tokens outside near clusters are below all others."""
    found: list[np.ndarray] = []

    def record(choice: TopLogit, graph: Any, counts: Any, rows: Any) -> None:
        plain_record(choice, graph, counts, rows)
        graph.output("logits", rows)

    def of_all(choice: TopLogit, launch: Any) -> list[int]:
        found.append(launch.rows("logits")[0].copy())
        return plain_tokens(choice, launch)

    def of_near(choice: NearClusters, launch: Any) -> Any:
        candidates, values = plain_logits(choice, launch)
        found.append(np.full(360, values.min() - 1, np.float32))
        found[-1][candidates[0]] = values[0]
        return candidates, values

    plain_record, plain_tokens, plain_logits = TopLogit.record, TopLogit.tokens, NearClusters.logits
    monkeypatch.setattr(TopLogit, "record", record)
    monkeypatch.setattr(TopLogit, "tokens", of_all)
    monkeypatch.setattr(NearClusters, "logits", of_near)
    return found


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return all proposals, each with this many tokens, without n-gram speculation."""
    found: list[list[int]] = []

    def propose(speculator: OwnSpeculator) -> list[int]:
        found.append(plain(speculator))
        return found[-1]

    plain = OwnSpeculator.propose
    monkeypatch.setattr(OwnSpeculator, "propose", propose)
    monkeypatch.setattr(PayingLength, "current", lambda *arguments: PROPOSED)
    monkeypatch.setattr(NgramSpeculator, "propose", lambda self: [])
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TARGETS)
def test_tokens_and_logits_are_those_of_transformers(
    name: str, backend: str, folder: Path, logits: list[np.ndarray], proposals: list[list[int]]
) -> None:
    wanted = expected(name)
    with chaski.load(
        folder / f"{TARGETS[name]}.gguf",
        draft=folder / f"{name}.gguf",
        backend=backend,
        context=64,
        num_batch=16,
        threads=1,
    ) as model:
        for length in wanted["lengths"].tolist():
            logits.clear()
            proposals.clear()
            prompt = wanted["prompt"][:length].tolist()
            answer = model.generate(prompt, temperature=0, num_predict=PROPOSED + 2, ignore_eos=True)
            assert [answer.token_ids[0], *proposals[0]] == wanted[f"tokens{length}"].tolist()
            np.testing.assert_allclose(logits[:PROPOSED], wanted[f"logits{length}"], atol=1e-3)
