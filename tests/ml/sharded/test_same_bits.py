"""Several nodes compute the bits of one: logits and answers, by layers and by rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from benchmarks.make_models import write
from benchmarks.shapes.llama import Llama
from benchmarks.shapes.shape import Vocabulary
from chaski.formats.quant import QuantType
from chaski.ml.sharded.member_plan import Rows
from tests import tiny_vision
from tests.ml.sharded.members import Nodes
from tests.nextn import write_with_blocks
from tests.own_heads import write_with_heads
from tests.tiny_llama import write_tiny_llama

ARCHITECTURES = Path(__file__).parents[2] / "data" / "architectures"
PROMPT = [5, 9, 2, 7, 1, 3, 8, 8, 4, 6, 5, 5, 2, 9, 9, 1, 4, 7]

# Windows and recurrent states, experts, sinks, and rows and columns of all kinds.
USUAL = [
    ("gemma3", "layers", 2),
    ("gpt-oss", "rows", 2),
    ("qwen3moe", "rows", 4),
    ("qwen35", "layers", 2),
]
LONG = [
    ("gemma3", "rows", 2),
    ("gpt-oss", "layers", 2),
    ("qwen3moe", "layers", 2),
    ("qwen35", "rows", 2),
]
MORE = [
    *("gemma", "gemma2", "gemma3n", "gemma4", "gemma4-moe", "gemma4-small", "gpt-oss-mxfp4", "granite"),
    *("granitemoe", "internlm2", "lfm2", "llama4", "mistral3", "mixtral", "phi3", "phi3-long", "phi3-short"),
    *("qwen2", "qwen2moe", "qwen3", "qwen35-even", "qwen35moe", "qwen3next"),
]
SPLITS = [("layers", 2), ("layers", 3), ("rows", 2), ("rows", 3), ("rows", 4)]
SLOW = [
    pytest.param(name, split, count, marks=pytest.mark.slow)
    for name in (*MORE, "gemma3", "gpt-oss", "qwen3moe", "qwen35")
    for split, count in SPLITS
    if (name, split, count) not in (*USUAL, *LONG)
]


def computed(path: Path, backend: str | None, tokens: int) -> object:
    """Return logits of a prompt in chunks, and answers of two sequences that exceed a context."""
    options = {"num_predict": tokens, "temperature": 0, "ignore_eos": True, "num_keep": 16}
    with chaski.load(path, context=64, parallel=2, num_batch=24, backend=backend) as llm:
        logits = llm.logits(PROMPT * 3)
        answers = [result.token_ids for result in llm.generate_many([PROMPT, [*PROMPT, 3, 3]], **options)]
    return logits.tobytes(), answers


@pytest.mark.parametrize(
    ("name", "split", "count"),
    [*USUAL, *(pytest.param(*each, marks=pytest.mark.long) for each in LONG), *SLOW],
)
def test_architectures(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, name: str, split: str, count: int
) -> None:
    path, tokens = ARCHITECTURES / f"{name}.gguf", 60 if count < 4 else 20
    expected = computed(path, "cpu", tokens)
    nodes.use(monkeypatch, split, count)
    try:
        found = computed(path, None, tokens)
    except chaski.OptionError as error:
        assert split == "layers"
        pytest.skip(str(error))  # such a tiny model has two layers
    assert found == expected


@pytest.mark.parametrize("kv_type", ["q4_0", "q3_0"])
@pytest.mark.parametrize("split", ["layers", "rows"])
def test_rotated_keys(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, split: str, kv_type: str) -> None:
    monkeypatch.setenv("OLLAMA_KV_CACHE_TYPE", kv_type)
    path = ARCHITECTURES / "gemma3.gguf"
    expected = computed(path, "cpu", 60)
    nodes.use(monkeypatch, split, 2)
    assert computed(path, None, 60) == expected


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("gemma3", (3, 1)),
        ("gpt-oss", (1, 3)),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("qwen3moe", (1, 2, 1)), ("qwen35", (1, 3)), ("gpt-oss", (2, 1)))
        ),
        *(pytest.param(name, (3, 1), marks=pytest.mark.slow) for name in (*MORE, "qwen3moe")),
    ],
)
def test_rows_in_shares(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, name: str, shares: tuple[int, ...]
) -> None:
    """Some members have more rows and heads than others; heads that cannot be cut are on all members."""
    path = ARCHITECTURES / f"{name}.gguf"
    expected = computed(path, "cpu", 40)
    nodes.use(monkeypatch, "rows", len(shares), shares)
    assert computed(path, None, 40) == expected


@pytest.mark.long
@pytest.mark.parametrize("matrices", ["F32", "Q8_0"])
def test_a_model_by_rows_of_three(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, matrices: str
) -> None:
    """Two heads cannot be cut in three, so every member has both; parts of matrices are uneven."""
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType[matrices])
    expected = computed(path, "cpu", 60)
    nodes.use(monkeypatch, "rows", 3)
    assert computed(path, None, 60) == expected


@pytest.mark.long
@pytest.mark.parametrize("shares", [(1, 1), (1, 1, 1, 1), (3, 1)])
def test_values_that_travel_in_super_blocks(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shares: tuple[int, ...]
) -> None:
    """Members have whole super-blocks of values that two products read; with four, of one product."""
    shape = Llama(2, 512, 4, 4, 128, 1024, 1e4, 256, Vocabulary("llama-bpe", 512, 8, 100))
    path = tmp_path / "blocks.gguf"
    write(path, shape, "Q4_K_M", "blocks")
    expected = computed(path, "cpu", 40)
    nodes.use(monkeypatch, "rows", len(shares), shares)
    assert computed(path, None, 40) == expected


def test_rows_leave_a_backend_once(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a GPU each fetch is a copy. Unread rows are not fetched."""
    fetched: list[Rows] = []
    fetch = Rows.fetch

    def noted(self: Rows, begin: int = 0, end: int | None = None) -> Any:
        fetched.append(self)
        return fetch(self, begin, end)

    monkeypatch.setattr(Rows, "fetch", noted)
    monkeypatch.setattr("chaski.ml.sharded.session._SMALL", -1)  # the head asks for the results it reads
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    nodes.use(monkeypatch, "rows", 2)
    with chaski.load(path, context=64) as llm:
        llm.generate(PROMPT, num_predict=8, temperature=0, ignore_eos=True)
    assert fetched
    assert len(fetched) == len(set(map(id, fetched)))


def test_more_layers_than_two(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ARCHITECTURES / "qwen35moe.gguf"
    expected = computed(path, "cpu", 60)
    nodes.use(monkeypatch, "layers", 3)
    assert computed(path, None, 60) == expected


@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss", "gemma3"])
def test_large_batches(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Rows are computed in chunks, but rows of experts are sorted over the whole batch."""
    path, found = ARCHITECTURES / f"{name}.gguf", []
    for backend in ("cpu", None):
        if backend is None:
            nodes.use(monkeypatch, "rows", 2)
        with chaski.load(path, context=192, backend=backend) as llm:
            result = llm.generate(PROMPT * 9, num_predict=8, temperature=0, ignore_eos=True, logprobs=True)
            found.append((result.token_ids, result.logprobs))
    assert found[0] == found[1]


@pytest.mark.long
@pytest.mark.parametrize(("split", "count"), [("layers", 2), ("rows", 2)])
def test_prompts_that_come_back(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, split: str, count: int
) -> None:
    """Cells are copied to the serving machine and back, for windows and full layers."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "on")
    path = write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0, llama__context_length=1024)
    prompts = [[7 + (3 * i + seed) % 200 for i in range(600)] for seed in (0, 5)]
    found = []
    for backend in ("cpu", None):
        if backend is None:
            nodes.use(monkeypatch, split, count)
        answers = []
        for _ in range(2):  # the second time blocks come from files
            with chaski.load(path, context=1024, backend=backend) as llm:
                for prompt in (*prompts, prompts[0]):
                    result = llm.generate(prompt, num_predict=12, temperature=1.0, seed=3)
                    answers.append((result.token_ids, result.cached_tokens))
        found.append(answers)
    assert found[0] == found[1]
    assert found[1][2][1] >= 256
    assert found[1][3][1] >= 256


@pytest.mark.parametrize(("split", "count"), [("layers", 2), ("rows", 2)])
def test_a_model_with_a_draft(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, split: str, count: int
) -> None:
    target = write_tiny_llama(tmp_path / "target.gguf", matrices=QuantType.Q8_0)
    draft = write_tiny_llama(tmp_path / "draft.gguf", matrices=QuantType.Q4_0)
    found = []
    for backend in ("cpu", None):
        if backend is None:
            nodes.use(monkeypatch, split, count)
        with chaski.load(target, backend=backend, draft=draft, context=256) as llm:
            result = llm.generate("once upon", num_predict=40, temperature=0)
            found.append((result.token_ids, result.done.proposed_tokens, result.done.accepted_tokens))
    assert found[0] == found[1]
    assert found[0][1] > 0


@pytest.mark.parametrize(("split", "count"), [("layers", 2), ("rows", 2)])
def test_images(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, split: str, count: int) -> None:
    """The encoder's layers are cut like the text's; its rows return before they are read."""
    path = tiny_vision.DATA / "gemma3.gguf"
    expected = tiny_vision.logits(path, "two")
    nodes.use(monkeypatch, split, count)
    np.testing.assert_array_equal(tiny_vision.logits(path, "two"), expected)


@pytest.mark.long
@pytest.mark.parametrize("split", ["layers", "rows"])
@pytest.mark.parametrize("kind", ["heads", "blocks"])
def test_heads_that_propose(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, split: str
) -> None:
    """Heads read hidden states, and storage that another plan has written."""
    path = tmp_path / "model.gguf"
    if kind == "heads":
        write_with_heads("qwen35", path)
    else:
        write_with_blocks("step35/usual", path)
    found = []
    for backend in ("cpu", None):
        if backend is None:
            nodes.use(monkeypatch, split, 2)
        with chaski.load(path, backend=backend, context=96) as llm:
            result = llm.generate(PROMPT, num_predict=30, temperature=0, ignore_eos=True)
            found.append((result.token_ids, result.done.proposed_tokens))
    assert found[0] == found[1]
    assert found[0][1] > 0


@pytest.mark.parametrize("name", ["jina-bert-v2", "nomic-bert-moe"])
def test_embeddings(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """It tests scores by distance of each member's own heads, and experts between other layers."""
    path, texts = ARCHITECTURES.parent / "embedders" / f"{name}.gguf", [[1, 2, 3, 4], [9, 8, 7] * 20]
    found = []
    for backend in ("cpu", None):
        if backend is None:
            nodes.use(monkeypatch, "rows", 2)
        with chaski.load(path, backend=backend, context=128, parallel=2) as llm:
            found.append(llm.embed(texts))
    np.testing.assert_array_equal(found[0], found[1])
