"""DSpark drafts against a definition in NumPy of what they add to DFlash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.formats.safetensors import open_checkpoint
from chaski.model.markov_program import paying
from tests.drafts import DRAFTS, TARGETS, write_dspark, write_pair
from tests.runner.speculation.test_dflash import CONTEXT, OPTIONS, ask, expected, program_of
from tests.safetensors_files import write_safetensors

KINDS = {"anchor": True, "masks": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafts")
    write_pair("qwen3", folder / "target.gguf", folder / "dflash.gguf")
    return folder


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def heads(folder: Path, kind: str) -> dict[str, np.ndarray]:
    return write_dspark(folder / "dflash.gguf", folder / f"{kind}.gguf", from_anchor=KINDS[kind])


@pytest.fixture
def model(folder: Path, kind: str, heads: dict[str, np.ndarray]) -> Iterator[chaski.LLM]:
    path, draft = folder / "target.gguf", folder / f"{kind}.gguf"
    with chaski.load(path, draft=draft, context=CONTEXT, num_batch=24, parallel=3, threads=2) as model:
        yield model


def chosen(
    heads: dict[str, np.ndarray], token: int, logits: np.ndarray, states: np.ndarray
) -> tuple[list[int], list[float]]:
    """Return the tokens and confidences of a block after `token`, from its logits and states."""
    tokens, confidences = [token], []
    for row, state in zip(logits, states, strict=True):
        before = heads["markov_w1.weight"][tokens[-1]]
        score = heads["conf_proj.weight"] @ np.concatenate([state, before]) + heads["conf_proj.bias"]
        confidences.append(1 / (1 + np.exp(-score.item())))
        tokens.append(int((row + heads["markov_w2.weight"] @ before).argmax()))
    return tokens[1:], confidences


def test_tokens_and_confidences_are_those_of_the_definition(
    model: chaski.LLM, kind: str, heads: dict[str, np.ndarray]
) -> None:
    wanted = expected("qwen3")
    text = wanted["text"].tolist()
    program, found = program_of(model), list[dict[str, np.ndarray]]()
    launch = program._plan.launch

    def launched(values: Any) -> Any:
        done = launch(values)
        found.append({name: done.rows(name).copy() for name in ("logits", "states")})
        return done

    program._plan = SimpleNamespace(launch=launched)
    lengths = set()
    for place in (1, 9, 40):
        proposed = ask(model, text, place, 99)
        rows = found.pop()
        np.testing.assert_allclose(rows["logits"][-5:], wanted[f"logits_{place}"], atol=1e-3)
        assert len(rows["logits"]) == (6 if kind == "anchor" else 5)
        tokens, confidences = chosen(heads, text[place], rows["logits"], rows["states"])
        assert proposed == tokens[: paying(confidences)]
        lengths.add(len(proposed))
    assert len(lengths) > 1


def test_a_proposal_ends_where_more_tokens_do_not_pay() -> None:
    assert paying([0.9] * 15) > 8
    assert paying([0.9, 0.8, 0.01, 0.9, 0.9]) == 2
    assert paying([0.01, 0.99]) == 1
    assert paying([0.5, 0.999, 0.999]) == 3


@pytest.mark.parametrize("kind", ["Qwen3DSparkModel", "DSparkDraftModel", "Lfm2DSparkDraftModel"])
def test_a_checkpoint_is_converted(folder: Path, tmp_path: Path, kind: str) -> None:
    heads = write_dspark(folder / "dflash.gguf", folder / "made.gguf", from_anchor=True)
    config = json.loads((DRAFTS / "qwen3" / "config.json").read_text())
    config |= config.pop("dflash_config")
    config |= {"architectures": [kind], "markov_rank": 6, "markov_head_type": "vanilla"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    names = {"markov_w1": "markov_head.markov_w1", "markov_w2": "markov_head.markov_w2"}
    tensors = {
        names.get(name.partition(".")[0], "confidence_head.proj") + f".{name.partition('.')[2]}": values
        for name, values in heads.items()
    }
    written = {name: ("F32", values) for name, values in tensors.items()}
    for name, held in open_checkpoint(DRAFTS / "qwen3").items():
        written[name] = held.dtype, np.asarray(held.data)
    write_safetensors(tmp_path / "model.safetensors", written)
    convert(tmp_path, tmp_path / "draft.gguf", "F32", target=TARGETS["qwen3"])
    with open_gguf(tmp_path / "draft.gguf") as found, open_gguf(folder / "made.gguf") as made:
        for key, value in made.metadata.items():
            if key.startswith("dflash."):
                np.testing.assert_array_equal(found.metadata[key], value)
        assert found.tensors.keys() == made.tensors.keys()
        for name, info in made.tensors.items():
            np.testing.assert_array_equal(found.tensors[name].data, info.data)


@pytest.mark.parametrize("options", [OPTIONS, {**OPTIONS, "temperature": 0.7, "seed": 3}], ids=str)
def test_the_answer_is_the_same(model: chaski.LLM, options: dict[str, Any]) -> None:
    text = expected("qwen3")["text"].tolist()
    prompts = [text[:20], text[:33], text[5:17]]
    plain = [model.generate(prompt, **options, draft_num_predict=0).token_ids for prompt in prompts]
    with ThreadPoolExecutor(3) as pool:
        drafted = list(pool.map(lambda prompt: model.generate(prompt, **options), prompts))
    assert [answer.token_ids for answer in drafted] == plain
    assert all(answer.done.proposed_tokens > 0 for answer in drafted)


def test_without_a_confidence_all_tokens_are_proposed(folder: Path) -> None:
    text = expected("qwen3")["text"].tolist()
    draft = folder / "unsure.gguf"
    write_dspark(folder / "dflash.gguf", draft, from_anchor=True, has_confidence=False)
    with chaski.load(folder / "target.gguf", draft=draft, context=CONTEXT) as model:
        assert len(ask(model, text, 9, 99)) == 6
        assert len(ask(model, text, 9, 3)) == 3
