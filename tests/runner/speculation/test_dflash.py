"""DFlash drafts against their definition in torch, with logits in the fixtures; and their errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ChaskiError, GGUFError, ModelError, OptionError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import LazyTensor
from chaski.formats.quant import QuantType
from chaski.ml import ops
from chaski.model.block_program import BlockProgram
from chaski.model.proposing import ProposalRequest
from chaski.runner.speculation.own_heads import OwnHeads
from tests.backends import BACKENDS
from tests.drafts import DRAFTS, TARGETS, rewritten, write_pair
from tests.eagle3 import DATA

NAMES = sorted(TARGETS)
CONTEXT = 128
OPTIONS: dict[str, Any] = {"temperature": 0, "num_predict": 40, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    for name in NAMES:
        write_pair(name, folder / f"{name}.gguf", folder / f"{name}-draft.gguf")
    return folder


def expected(name: str) -> dict[str, Any]:
    with np.load(DRAFTS / name / "expected.npz") as arrays:
        return dict(arrays)


def program_of(model: chaski.LLM) -> BlockProgram:
    assert isinstance(model.engine.draft, OwnHeads)
    program = model.engine.draft.proposer([]).program
    assert isinstance(program, BlockProgram)
    return program


def ask(model: chaski.LLM, text: list[int], place: int, most: int) -> list[int]:
    """Request the block after the token at `place`, with earlier tokens computed."""
    model.generate(text[:place], num_predict=1, draft_num_predict=0)
    row: Any = None
    request = ProposalRequest(0, place, text[place], row, most)
    program = program_of(model)
    assert program.cache.length(0) == place
    program.propose([request])
    assert program.cache.length(0) == place
    return request.proposed


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Record the logits of all blocks that are proposed from now on."""
    found: list[np.ndarray] = []

    def top_k(x: Any, counts: Any, most: int) -> Any:
        x.graph.output("logits", x)
        return ops.top_k(x, counts, most)

    def filling(self: Any, requests: Any) -> None:
        launch = self._plan.launch

        def launched(values: Any) -> Any:
            done = launch(values)
            found.append(done.rows("logits").copy())
            return done

        self._plan = SimpleNamespace(launch=launched)
        fill(self, requests)
        self._plan = launch.__self__

    fill = BlockProgram._fill
    for module in ("block_program", "selector_program"):
        monkeypatch.setattr(f"chaski.model.{module}.ops", SimpleNamespace(top_k=top_k))
    monkeypatch.setattr(BlockProgram, "_fill", filling)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_definition(
    folder: Path, name: str, backend: str, logits: list[np.ndarray]
) -> None:
    wanted = expected(name)
    text = wanted["text"].tolist()
    path, draft = folder / f"{name}.gguf", folder / f"{name}-draft.gguf"
    with chaski.load(path, draft=draft, context=CONTEXT, backend=backend, num_batch=24) as model:
        for place in (1, 9, 40):
            rows = wanted[f"logits_{place}"]
            assert ask(model, text, place, 99) == wanted.get(f"chosen_{place}", rows.argmax(-1)).tolist()
            np.testing.assert_allclose(logits.pop(), rows, atol=1e-3)


def test_a_draft_with_embeddings_and_tokens_of_its_own(folder: Path, tmp_path: Path) -> None:
    """With the target's embeddings it proposes the same; with some of the tokens, only these."""
    text = expected("qwen3")["text"].tolist()
    with open_gguf(folder / "qwen3.gguf") as file:
        table = np.array(file.tensors["token_embd.weight"].data.view(np.float32)).reshape(301, -1)
    draft = folder / "qwen3-draft.gguf"
    own = rewritten(
        draft,
        tmp_path / "own.gguf",
        {"dflash.embedding_scale": 0.5},
        {
            "token_embd.weight": (2 * table, QuantType.F32),
            "output.weight": (table, QuantType.F32),
        },
    )
    ids = np.arange(1, 301, 2).astype("<i8")
    some = rewritten(
        draft,
        tmp_path / "some.gguf",
        {},
        {
            "output.weight": (table[ids], QuantType.F32),
            "d2t": LazyTensor(ids.shape, QuantType.I64, lambda: iter([ids.view(np.uint8)])),
        },
    )
    found = []
    for path in (draft, own, some):
        with chaski.load(folder / "qwen3.gguf", draft=path, context=CONTEXT) as model:
            found.append([ask(model, text, place, 5) for place in (1, 9, 40)])
            plain = model.generate(text[:20], draft_num_predict=0, **OPTIONS).token_ids
            assert model.generate(text[:20], **OPTIONS).token_ids == plain
    assert found[1] == found[0]
    assert {token % 2 for block in found[2] for token in block} == {1}
    assert found[2] != found[0]


def test_the_same_blocks_in_chunks_beside_others_and_behind_a_cached_prompt(folder: Path) -> None:
    """They depend on the keys that the draft stores, so these are the same, too."""
    text = expected("qwen35")["text"].tolist()
    path, draft = folder / "qwen35.gguf", folder / "qwen35-draft.gguf"
    with chaski.load(path, draft=draft, context=CONTEXT) as model:
        wanted = [ask(model, text, place, 15) for place in (40, 41)]
    with chaski.load(path, draft=draft, context=CONTEXT, num_batch=21, parallel=3) as model:
        assert [ask(model, text, place, 15) for place in (40, 41)] == wanted
        other = [5, 6, 7, 8]
        model.generate(other, num_predict=1, draft_num_predict=0)
        program = program_of(model)
        lengths = [program.cache.length(slot) for slot in range(3)]
        slots = [lengths.index(41), lengths.index(4), lengths.index(0)]
        row: Any = None
        requests = [
            ProposalRequest(slot, lengths[slot], token, row, most)
            for slot, token, most in zip(slots, (text[41], 9, 7), (15, 3, 15), strict=True)
        ]
        program.propose(requests)
        assert requests[0].proposed == wanted[1]
        assert [len(each.proposed) for each in requests] == [15, 3, 15]
        assert [program.cache.length(slot) for slot in range(3)] == lengths


@pytest.mark.parametrize(
    ("metadata", "error", "words"),
    [
        ({"dflash.target_layers": [1, 9]}, OptionError, "before layer 9, but the model has 4 layers"),
        ({"dflash.target_layers": None}, GGUFError, "dflash.target_layers"),
        ({"dflash.block_size": 1}, ModelError, "dflash.block_size is 1"),
        ({"tokenizer.ggml.mask_token_id": None}, GGUFError, "mask_token_id"),
        ({"tokenizer.ggml.mask_token_id": 301}, OptionError, "its mask is token 301"),
    ],
    ids=str,
)
def test_numbers_that_fit_nothing(
    folder: Path, tmp_path: Path, metadata: dict[str, Any], error: type[ChaskiError], words: str
) -> None:
    draft = rewritten(folder / "qwen3-draft.gguf", tmp_path / "draft.gguf", metadata)
    with pytest.raises(error, match=words):
        chaski.load(folder / "qwen3.gguf", draft=draft, context=CONTEXT)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"dflash.conv_group_size": 3}, "the second must divide 40"),
        ({"dflash.conv_kernel_size": 0}, "the first must be positive"),
        ({"dflash.selector_top_k": 302}, "it must be 1 to 301, the number of logits"),
    ],
    ids=str,
)
def test_numbers_of_dflash_2_that_fit_nothing(
    folder: Path, tmp_path: Path, metadata: dict[str, Any], words: str
) -> None:
    draft = rewritten(folder / "qwen3-second-draft.gguf", tmp_path / "draft.gguf", metadata)
    with pytest.raises(ModelError, match=words):
        chaski.load(folder / "qwen3-second.gguf", draft=draft, context=CONTEXT)


def test_a_selector_of_some_tokens_and_blocks_beside_others(folder: Path, tmp_path: Path) -> None:
    text = expected("qwen3-second")["text"].tolist()
    with open_gguf(folder / "qwen3-second.gguf") as file:
        table = np.array(file.tensors["token_embd.weight"].data.view(np.float32)).reshape(301, -1)
    ids = np.arange(1, 301, 2).astype("<i8")
    some = rewritten(
        folder / "qwen3-second-draft.gguf",
        tmp_path / "some.gguf",
        {},
        {
            "output.weight": (table[ids], QuantType.F32),
            "d2t": LazyTensor(ids.shape, QuantType.I64, lambda: iter([ids.view(np.uint8)])),
        },
    )
    with chaski.load(folder / "qwen3-second.gguf", draft=some, context=CONTEXT, parallel=3) as model:
        alone = ask(model, text, 40, 6)
        assert {token % 2 for token in alone} == {1}
        model.generate([5, 6, 7, 8], num_predict=1, draft_num_predict=0)
        lengths = [program_of(model).cache.length(slot) for slot in range(3)]
        first, other = lengths.index(40), lengths.index(4)
        row: Any = None
        together = [
            ProposalRequest(other, 4, 9, row, 3),
            ProposalRequest(first, 40, text[40], row, 6),
        ]
        program_of(model).propose(together)
        assert together[1].proposed == alone
        assert len(together[0].proposed) == 3


@pytest.mark.parametrize("name", ["hc_head_fn.weight"])
def test_what_grew_out_of_it_is_refused_by_name(folder: Path, tmp_path: Path, name: str) -> None:
    more = {name: (np.zeros((4, 40), np.float32), QuantType.F32)}
    draft = rewritten(folder / "qwen3-draft.gguf", tmp_path / "draft.gguf", {}, more)
    with pytest.raises(UnsupportedError, match=name):
        chaski.load(folder / "qwen3.gguf", draft=draft, context=CONTEXT)


def test_a_pair_that_does_not_fit(folder: Path) -> None:
    with pytest.raises(OptionError, match="cannot be the draft of"):
        chaski.load(folder / "qwen35.gguf", draft=folder / "qwen3-draft.gguf", context=CONTEXT)
    with pytest.raises(OptionError, match="cannot be the draft of"):
        chaski.load(DATA / "qwen3.gguf", draft=folder / "qwen3-draft.gguf", context=CONTEXT)


def test_the_file_alone_is_no_model(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"this is a draft.* not a model"):
        chaski.load(folder / "qwen3-draft.gguf")


def test_what_layers_see_follows_the_file(folder: Path, tmp_path: Path) -> None:
    """The file states it for all layers, or only windows imply it."""
    text = expected("qwen35")["text"].tolist()
    found = []
    for is_causal in (None, True, False):
        path = tmp_path / f"{is_causal}.gguf"
        draft = rewritten(folder / "qwen35-draft.gguf", path, {"dflash.attention.causal": is_causal})
        with chaski.load(folder / "qwen35.gguf", draft=draft, context=CONTEXT) as model:
            found.append([ask(model, text, place, 15) for place in (9, 40)])
            plain = model.generate(text[:20], draft_num_predict=0, **OPTIONS).token_ids
            assert model.generate(text[:20], **OPTIONS).token_ids == plain
    assert found[0] != found[1] != found[2] != found[0]
