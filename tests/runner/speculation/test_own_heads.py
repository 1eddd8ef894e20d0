"""The heads of a model, and attached drafts, change when tokens arrive, but never the tokens."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.runner.speculation.own_heads import OwnHeads
from tests.assistants import write_assistant, write_quiet_gemma
from tests.backends import BACKENDS
from tests.drafts import write_pair
from tests.eagle3 import write_eagle3, write_quieter
from tests.nextn import NEXTN, write_with_blocks
from tests.own_heads import DATA, write_with_heads
from tests.rewriting import all_tensors
from tests.tiers import long_after

NAMES = ("qwen35", "qwen35moe", "qwen3next")
MORE = ("own-output", "two-heads")
DRAFTED = ("qwen3", "gemma3", "gpt-oss", "lfm2", "qwen35 drafted")
BLOCKS = ("qwen3 blocks", "qwen3-second blocks", "qwen35 blocks")
ASSISTED = ("gemma4", "gemma4-small")
OWN = tuple(variant.replace("/", " ") for variant in NEXTN)
PROMPT = np.random.default_rng(2).integers(5, 60, 70).tolist()
CONTEXT = 128
LONG = {"temperature": 0, "num_predict": 3 * CONTEXT}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_with_heads(name, folder / f"{name}.gguf")
    write_with_heads("qwen35", folder / "own-output.gguf", has_own_output=True)
    write_with_heads("qwen35", folder / "two-heads.gguf", blocks=2)
    write_with_heads("qwen35", folder / "rare.gguf", vocab_size=700, said_by_layers=0.1)
    for variant in NEXTN:
        write_with_blocks(variant, folder / f"{variant.replace('/', ' ')}.gguf")
    for name in BLOCKS:
        write_pair(name.removesuffix(" blocks"), folder / f"{name}.gguf", folder / f"{name}-draft.gguf")
    for name in DRAFTED:
        target = write_quieter(name.removesuffix(" drafted"), folder / f"{name}.gguf")
        write_eagle3(target, folder / f"{name}-draft.gguf")
    for name in ASSISTED:
        target = write_quiet_gemma(name, folder / f"{name}.gguf")
        write_assistant(target, folder / f"{name}-draft.gguf", in_clusters=name == "gemma4-small")
    return folder


@pytest.fixture(
    scope="module", params=[*NAMES, *MORE, *DRAFTED, *ASSISTED, *BLOCKS, "mimo2 usual", "step35 usual"]
)
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[chaski.LLM]:
    path = folder / f"{request.param}.gguf"
    draft = folder / f"{request.param}-draft.gguf" if request.param in DRAFTED + ASSISTED + BLOCKS else None
    with chaski.load(path, parallel=4, context=CONTEXT, num_batch=24, threads=2, draft=draft) as model:
        yield model


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.5, "seed": 5},
    {**LONG, "num_keep": 50},
    {"temperature": 0},
    {"temperature": 1.0, "seed": 5, "top_k": 0, "min_p": 0.02},
    {"temperature": 0, "num_predict": 41, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0.3, "seed": 1, "repeat_penalty": 1.3},
    {"temperature": 0, "draft_num_predict": 1},
    LONG,
    {**LONG, "shift": False},
]
# One model of each kind of draft has all options; others have two, one of which shifts.
OF_EACH_KIND = ("qwen35", "qwen3", "gemma4", "qwen3 blocks", "step35 usual")
CASES = [
    *((name, options) for name in OF_EACH_KIND for options in OPTIONS),
    *(
        pytest.param(name, options, marks=pytest.mark.long)
        for name in (*NAMES, *MORE, *DRAFTED, *ASSISTED, *BLOCKS, *OWN)
        if name not in OF_EACH_KIND
        for options in OPTIONS[:2]
    ),
]


@pytest.mark.parametrize(("model", "options"), CASES, ids=str, indirect=["model"], scope="module")
def test_the_answer_is_the_same(model: chaski.LLM, options: dict[str, Any]) -> None:
    settings = {"num_predict": 50, "ignore_eos": True, **options}
    plain = model.generate(PROMPT, **{**settings, "draft_num_predict": 0})
    drafted = model.generate(PROMPT, **settings)
    assert drafted.token_ids == plain.token_ids
    assert drafted.logprobs == plain.logprobs
    assert drafted.done_reason == plain.done_reason
    assert drafted.done.shifted_tokens == plain.done.shifted_tokens
    assert drafted.done.proposed_tokens > 0
    assert plain.done.proposed_tokens == 0


@pytest.mark.parametrize("name", long_after(4, [*NAMES, "two-heads", *OWN]))
def test_the_numbers_are_those_of_the_model_without_them(folder: Path, name: str) -> None:
    whole, without = folder / f"{name}.gguf", folder / f"{name}-without.gguf"
    with open_gguf(whole) as file:
        arch = file.architecture
        end, count = (file.get(f"{arch}.{key}", int) for key in ("block_count", "nextn_predict_layers"))
        heads = tuple(f"blk.{index}." for index in range(end - count, end))
        tensors = {key: data for key, data in all_tensors(file).items() if not key.startswith(heads)}
        write_gguf(without, file.metadata, tensors)
    with chaski.load(whole, context=CONTEXT) as model, chaski.load(without, context=CONTEXT) as plain:
        np.testing.assert_array_equal(model.logits(PROMPT), plain.logits(PROMPT))
        assert model.engine.draft is not None
        assert plain.engine.draft is None
        assert model.memory().total > plain.memory().total


def proposals(model: chaski.LLM, prompt: list[int], **options: Any) -> tuple[Any, ...]:
    answer = model.generate(prompt, temperature=0, num_predict=40, **options)
    return answer.token_ids, answer.done.proposed_tokens, answer.done.accepted_tokens


@pytest.mark.parametrize(
    "name", ["qwen35", "two-heads", "glm4moe usual", "glm5_next usual", "mimo2 usual", "step35 usual"]
)
def test_the_same_tokens_are_proposed_in_chunks_and_behind_a_cached_prompt(folder: Path, name: str) -> None:
    """They depend on the keys that the block stores, so these are the same, too."""
    longer = [*PROMPT, 7, 9, 11]
    with chaski.load(folder / f"{name}.gguf", context=CONTEXT, prompt_cache=False) as model:
        expected = proposals(model, PROMPT), proposals(model, longer)
    assert expected[0][2] > 5
    with chaski.load(folder / f"{name}.gguf", context=CONTEXT, num_batch=7, parallel=2) as model:
        assert proposals(model, PROMPT) == expected[0]
        assert proposals(model, PROMPT) == expected[0]
        assert proposals(model, longer) == expected[1]
        model.generate(longer, num_predict=1)
        assert model.generate(longer, num_predict=1).cached_tokens > 0
        assert proposals(model, longer) == expected[1]


def test_answers_beside_each_other_are_those_alone(model: chaski.LLM) -> None:
    prompts = [PROMPT[:count] for count in (3, 40, 70, 33, 64, 9)]
    options: list[dict[str, Any]] = [{"temperature": 0.4, "seed": seed} for seed in range(5)]
    options += [{"temperature": 0, "draft_num_predict": 0}]

    def answer(index: int) -> tuple[int, ...]:
        return model.generate(prompts[index], num_predict=40, **options[index]).token_ids

    alone = [answer(index) for index in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(answer, range(6))) == alone


def test_only_common_tokens_are_proposed_where_a_text_has_no_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "rare.gguf"
    with chaski.load(path, context=CONTEXT) as model:
        expected = [proposals(model, PROMPT)[0], proposals(model, [650] * 64)[0]]
    monkeypatch.setattr("chaski.runner.speculation.own_heads.num_common_tokens", lambda _: 256)
    with chaski.load(path, context=CONTEXT) as model:
        draft = model.engine.draft
        assert isinstance(draft, OwnHeads)
        assert draft.proposer(PROMPT).program.most_tokens == 256
        assert draft.proposer([*PROMPT, *[650] * 9]).program.most_tokens == 700
        assert draft.proposer(PROMPT).cost.token < draft.proposer([650]).cost.token
        assert [proposals(model, PROMPT)[0], proposals(model, [650] * 64)[0]] == expected


def test_an_answer_whose_reader_left_spoils_nothing(model: chaski.LLM) -> None:
    expected = model.generate(PROMPT, temperature=0, num_predict=40, draft_num_predict=0).token_ids
    for pieces in (1, 10):
        stream = model.stream(PROMPT, temperature=0, num_predict=40)
        for _ in range(pieces):
            next(stream)
        stream.close()
        assert model.generate(PROMPT, temperature=0, num_predict=40).token_ids == expected


def test_a_failure_while_it_proposes_is_survived(model: chaski.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.generate(PROMPT, temperature=0, num_predict=40, draft_num_predict=0).token_ids

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        for part in ("CachePart", "StoredPart"):
            patched.setattr(f"chaski.kvcache.part.{part}.undo_forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, temperature=0, num_predict=40)
    assert model.generate(PROMPT, temperature=0, num_predict=40).token_ids == expected


@pytest.mark.parametrize("name", ["qwen35", "step35 usual"])
def test_every_backend_proposes_the_same(folder: Path, name: str) -> None:
    found = []
    for backend in dict.fromkeys(("cpu", *BACKENDS)):
        with chaski.load(folder / f"{name}.gguf", context=CONTEXT, backend=backend) as model:
            found.append(proposals(model, PROMPT))
    assert found[0] == found[1]


def test_a_draft_model_takes_the_place_of_the_heads(folder: Path) -> None:
    path = folder / "qwen35.gguf"
    with chaski.load(path, context=CONTEXT, draft=DATA / "qwen35.gguf") as model:
        assert not isinstance(model.engine.draft, OwnHeads)
        expected = model.generate(PROMPT, temperature=0, num_predict=20, draft_num_predict=0).token_ids
        assert model.generate(PROMPT, temperature=0, num_predict=20).token_ids == expected
    with chaski.load(DATA / "qwen35.gguf", context=CONTEXT, draft=path) as model:
        assert model.generate(PROMPT, temperature=0, num_predict=20).done.proposed_tokens > 0
