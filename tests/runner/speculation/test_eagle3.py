"""EAGLE-3 drafts: their numbers against a reference in torch, and the models that they fit.

tools/fixtures/make_eagle3.py makes the drafts and the reference's logits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.kvcache import CacheSize, KVTypes, build_cache
from chaski.kvcache.batch import Batch
from chaski.kvcache.part import CachePart
from chaski.ml import open_backend
from chaski.ml.graph import Dim, DType, Graph
from chaski.model.attached import StepDraft, Target
from chaski.model.drafts import attach_draft
from chaski.model.output_rows import HIDDEN
from chaski.model.program import Program
from chaski.model.proposing import ProposalInputs
from chaski.model.registry import build_model
from chaski.model.weights import place_weights
from tests.drafts import DRAFTS, EAGLE3
from tests.eagle3 import write_eagle3, write_quieter

BEGIN, LENGTH = 30, 40


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the target and its drafts."""
    folder = tmp_path_factory.mktemp("eagle3")
    convert(EAGLE3["eagle3"], folder / "target.gguf", "F32")
    for name, target in EAGLE3.items():
        convert(DRAFTS / name, folder / f"{name}.gguf", "F32", target=target)
    return folder


@dataclass(frozen=True, slots=True)
class Opened:
    """A target with its draft, and the plan that proposes, with all logits."""

    program: Program
    part: CachePart
    plan: Any

    def step(self, token: int, position: int, hidden: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        none = np.zeros(0, np.int32)
        batch = Batch(
            np.array([token], np.int32), np.array([position], np.int32), np.zeros(1, np.int32), none
        )
        inputs = {"tokens": batch.tokens, "positions": batch.positions, HIDDEN: hidden}
        launch = self.plan.launch({**self.part.start_forward(batch), **inputs})
        return launch.rows("logits").copy(), launch.rows(HIDDEN).copy()


@pytest.fixture(params=sorted(EAGLE3))
def case(request: pytest.FixtureRequest, files: Path) -> Iterator[tuple[Opened, dict[str, np.ndarray]]]:
    size = CacheSize(1, 64, 48)
    with (
        closing(open_backend("cpu")) as backend,
        open_gguf(files / "target.gguf") as file,
        open_gguf(files / f"{request.param}.gguf") as draft_file,
    ):
        model = build_model(file)
        draft = attach_draft(draft_file, Target(model, file))
        assert isinstance(draft, StepDraft)
        place_weights(model, file, backend, draft=draft)
        kinds = [*model.layer_kinds(), *draft.layer_kinds()]
        cache = build_cache(backend, kinds, size, KVTypes(DType.F32, DType.F32))
        program = Program(model, cache, backend, 48, 4, draft=draft)
        part = CachePart(cache, draft.proposing_layers)
        graph, tokens = Graph(), Dim("tokens", 1)
        inputs = ProposalInputs(
            graph.input("tokens", (tokens,), DType.I32),
            graph.input("positions", (tokens,), DType.I32),
            graph.input(HIDDEN, (tokens, draft.hidden_size), DType.F32),
            most_tokens=None,
        )
        hidden, logits = draft.propose(inputs, part.record(graph, tokens))
        graph.output(HIDDEN, hidden)
        graph.output("logits", logits)
        opened = Opened(program, part, backend.compile(graph))
        backend.load(lambda share: None)
        with np.load(DRAFTS / request.param / "expected.npz") as expected:
            np.testing.assert_array_equal(draft.token_ids, expected["ids"])
            yield opened, dict(expected)


@pytest.mark.parametrize("cuts", [(0, BEGIN), (0, 1, 8, 9, BEGIN)], ids=str)
def test_logits_are_those_of_the_reference(
    case: tuple[Opened, dict[str, np.ndarray]], cuts: tuple[int, ...]
) -> None:
    """The target computes the first tokens, in chunks or not, and the draft continues alone."""
    opened, expected = case
    text = expected["text"]
    for begin, end in pairwise(cuts):
        positions = np.arange(begin, end, dtype=np.int32)
        last = np.array([len(positions) - 1], np.int32)
        batch = Batch(text[begin:end], positions, np.zeros_like(positions), last)
        run = opened.program.launch(opened.program.prepare(batch))
        opened.program.wait()
    hidden = run.outputs().row(0).hidden()[None].copy()
    found = []
    for position in range(BEGIN, LENGTH):
        logits, hidden = opened.step(int(text[position]), position, hidden)
        found.append(logits[0])
    np.testing.assert_allclose(np.array(found), expected["logits"], atol=1e-4)


@pytest.mark.parametrize("name", ["eagle3", "eagle3-speculators"])
def test_a_converted_draft_proposes(files: Path, name: str) -> None:
    prompt = list(range(20, 60))
    with chaski.load(files / "target.gguf", draft=files / f"{name}.gguf", context=128) as model:
        plain = model.generate(prompt, temperature=0, num_predict=30, ignore_eos=True, draft_num_predict=0)
        drafted = model.generate(prompt, temperature=0, num_predict=30, ignore_eos=True)
    assert drafted.token_ids == plain.token_ids
    assert drafted.done.proposed_tokens > 0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    target = write_quieter("qwen3", folder / "target.gguf")
    return target, write_eagle3(target, folder / "draft.gguf")


def test_a_prompt_is_taken_over_wherever_another_one_leaves_it(pair: tuple[Path, Path]) -> None:
    """The previous token's row exists at any position, so the same tokens are proposed."""
    target, draft = pair
    prompt = np.random.default_rng(2).integers(5, 60, 60).tolist()
    others = [[*prompt[:count], 7, 9] for count in (13, 40, 59)]

    def proposals(model: chaski.LLM, ids: list[int]) -> tuple[Any, ...]:
        answer = model.generate(ids, temperature=0, num_predict=30, ignore_eos=True)
        return answer.token_ids, answer.done.proposed_tokens, answer.done.accepted_tokens

    with chaski.load(target, draft=draft, context=128, prompt_cache=False) as model:
        expected = [proposals(model, ids) for ids in others]
    with chaski.load(target, draft=draft, context=128, parallel=2) as model:
        for ids, found in zip(others, expected, strict=True):
            cached = model.generate(prompt, num_predict=1).cached_tokens
            assert proposals(model, ids) == found
        assert cached > 0


def test_its_weights_and_caches_are_counted(pair: tuple[Path, Path]) -> None:
    target, draft = pair
    with chaski.load(target, context=128) as plain, chaski.load(target, draft=draft, context=128) as model:
        ours, theirs = model.memory(), plain.memory()
        assert ours.weights - theirs.weights > 0.5 * draft.stat().st_size
        assert ours.cache > theirs.cache
        assert ours.plans > theirs.plans


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"eagle3__target_hidden_size": 65}, "hidden states of 65 numbers, but those of the model have 64"),
        ({"layers": (0, 1, 3)}, "before layer 3, but the model has 2 layers"),
        ({"tokenizer__ggml__tokens": ["x"] * 64}, "a draft needs the same vocabulary"),
        ({"num_proposed": 40, "cut": 64}, "a draft proposes for the model"),
        ({"size": 48, "without": ("token_embd.weight",)}, "it has no token_embd.weight"),
    ],
    ids=str,
)
def test_a_draft_of_another_model_is_refused(
    pair: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    draft = write_eagle3(pair[0], tmp_path / "other.gguf", **changes)
    with pytest.raises(chaski.OptionError, match=reason):
        chaski.load(pair[0], draft=draft)


def test_a_model_that_cannot_have_one_says_why(tmp_path: Path) -> None:
    target = write_quieter("gemma3n", tmp_path / "model.gguf")
    draft = write_eagle3(target, tmp_path / "draft.gguf")
    with pytest.raises(chaski.UnsupportedError, match=r"load (it|the model) without"):
        chaski.load(target, draft=draft)


def test_a_draft_is_no_model_by_itself(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(chaski.UnsupportedError, match=r"this is a draft.*draft=\.\.\."):
        chaski.load(pair[1])
    broken = write_eagle3(pair[0], tmp_path / "broken.gguf", eagle3__block_count=2)
    with pytest.raises(chaski.ModelError, match="the EAGLE-3 draft has 2 layers"):
        chaski.load(pair[0], draft=broken)
