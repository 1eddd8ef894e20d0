"""Gemma 4's assistants: their proposals, also after pictures, and models that they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.errors import ModelError, OptionError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.runner.speculation.ngram import NgramSpeculator
from chaski.runner.speculation.speculator import PayingLength
from tests.assistants import write_assistant, write_quiet_gemma
from tests.gemma4.prompts import NAMES, PROMPTS
from tests.image.pictures import png
from tests.rewriting import all_tensors, bytes_as
from tests.vision_oracle import answers_at_once, said

DATA = Path(__file__).parents[2] / "data"
PROMPT = np.random.default_rng(2).integers(5, 60, 70).tolist()
GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 40, "ignore_eos": True}
SAMPLED: dict[str, Any] = {"temperature": 0.6, "seed": 3, "num_predict": 60, "ignore_eos": True}
PAIRS = ("gemma4", "gemma4-small")
CONTEXT = 256


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assistants")
    for name in PAIRS:
        target = write_quiet_gemma(name, folder / f"{name}.gguf")
        write_assistant(target, folder / f"{name}-draft.gguf", in_clusters=name == "gemma4-small")
    return folder


@pytest.fixture
def no_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NgramSpeculator, "propose", lambda self: [])


@pytest.fixture
def always_three(monkeypatch: pytest.MonkeyPatch, no_repetitions: None) -> None:
    monkeypatch.setattr(PayingLength, "current", lambda *arguments: 3)


def load(folder: Path, name: str, **options: Any) -> chaski.LLM:
    draft = folder / f"{name}-draft.gguf"
    return chaski.load(folder / f"{name}.gguf", **{"context": CONTEXT, "draft": draft, **options})


def proposals(model: chaski.LLM, prompt: list[int]) -> tuple[Any, ...]:
    answer = model.generate(prompt, **SAMPLED)
    return answer.token_ids, answer.done.proposed_tokens, answer.done.accepted_tokens


@pytest.mark.usefixtures("always_three")
@pytest.mark.parametrize("name", PAIRS)
def test_the_same_tokens_are_proposed_in_chunks_and_behind_a_cached_prompt(name: str, folder: Path) -> None:
    """They depend only on the keys that the target stores, not on remains of other proposals."""
    with load(folder, name, prompt_cache=False) as model:
        first = proposals(model, PROMPT)
        longer = [*PROMPT, *first[0], 7, 9, 11]
        expected = first, proposals(model, longer)
        plain = model.generate(PROMPT, **SAMPLED, draft_num_predict=0)
        assert plain.token_ids == expected[0][0]
        assert (plain.done.proposed_tokens, plain.done.accepted_tokens) == (0, 0)
    assert 10 < expected[0][2] < expected[0][1]
    with load(folder, name, num_batch=17, parallel=2) as model:
        assert proposals(model, PROMPT) == expected[0]
        answer = model.generate(longer, **SAMPLED)
        assert answer.cached_tokens > 100
        assert (answer.token_ids, answer.done.proposed_tokens, answer.done.accepted_tokens) == expected[1]
        assert proposals(model, PROMPT) == expected[0]
    with load(folder, name, backend="reference") as model:
        assert proposals(model, PROMPT) == expected[0]


@pytest.mark.usefixtures("no_repetitions")
def test_it_proposes_little_where_it_is_never_right(folder: Path, tmp_path: Path) -> None:
    target = folder / "gemma4.gguf"
    draft = write_assistant(target, tmp_path / "draft.gguf", knows=False)
    with chaski.load(target, draft=draft, context=512) as model:
        done = model.generate(PROMPT, **{**GREEDY, "num_predict": 400}).done
    assert 0 < done.proposed_tokens < 40
    assert done.accepted_tokens < 4


@pytest.mark.parametrize("name", NAMES)
def test_answers_behind_pictures_are_the_same(name: str, tmp_path: Path) -> None:
    target = tmp_path / f"{name}.gguf"
    convert(DATA / "gemma4" / name, target, "F32")
    draft = write_assistant(target, tmp_path / "draft.gguf")
    prompts = [(text, [png(*size) for size in sizes]) for text, sizes in PROMPTS.values()]
    options = {**GREEDY, "num_predict": 20, "logprobs": True}
    with chaski.load(target, context=96, prompt_cache=False) as model:
        expected = [said(model.generate(*prompt, **options, draft_num_predict=0)) for prompt in prompts]
    with chaski.load(target, context=96, parallel=4, num_batch=16, draft=draft) as model:
        assert answers_at_once(model, prompts, **options) == expected
        assert answers_at_once(model, prompts, **options) == expected
        assert sum(model.generate(*prompt, **options).done.proposed_tokens for prompt in prompts) > 0


def rewritten(
    source: Path, path: Path, keys: dict[str, str] | None = None, names: dict[str, str] | None = None
) -> Path:
    """Write the same file with other keys and tensor names; an empty name removes a tensor."""
    keys, names = keys or {}, names or {}
    with open_gguf(source) as file:
        metadata = {keys.get(key, key): value for key, value in file.metadata.items()}
        tensors = {names.get(key, key): data for key, data in all_tensors(file).items()}
        write_gguf(path, {k: v for k, v in metadata.items() if k}, {k: v for k, v in tensors.items() if k})
    return path


@pytest.mark.usefixtures("always_three")
def test_files_from_before_it_had_its_names(folder: Path, tmp_path: Path) -> None:
    old = {key: key.replace("gemma4-assistant", "gemma4_assistant") for key in metadata_of(folder)}
    old["gemma4-assistant.embedding_length_out"] = "gemma4_assistant.n_embd_backbone"
    old["gemma4-assistant.nextn_predict_layers"] = ""
    names = {
        "nextn.pre_projection.weight": "mtp.pre_projection.weight",
        "nextn.post_projection.weight": "mtp.post_projection.weight",
        "masked_embd_centroids.weight": "mtp.centroids.weight",
        "masked_embd_ordering": "mtp.token_ordering.weight",
        "rope_freqs.weight": "",
    }
    path = rewritten(folder / "gemma4-small-draft.gguf", tmp_path / "old.gguf", old, names)
    with open_gguf(path) as file:
        tensors = all_tensors(file)
        metadata = {**file.metadata, "general.architecture": "gemma4_assistant"}
    write_gguf(path, metadata, tensors)
    with load(folder, "gemma4-small") as new, load(folder, "gemma4-small", draft=path) as old_one:
        assert proposals(old_one, PROMPT) == proposals(new, PROMPT)
    with pytest.raises(UnsupportedError, match="this is a draft, which proposes tokens for the model"):
        chaski.load(path)


def metadata_of(folder: Path) -> list[str]:
    with open_gguf(folder / "gemma4-small-draft.gguf") as file:
        return list(file.metadata)


@pytest.mark.parametrize("name", PAIRS)
def test_clusters_cost_less_than_all_tokens(name: str, folder: Path) -> None:
    with load(folder, name) as model:
        proposer = model.engine.draft.proposer(PROMPT)
        assert 0 < proposer.cost.token < (1.2 if name == "gemma4" else 0.9)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "hidden size": ({"embedding_length_out": 40}, "reads hidden states of 40 numbers, but .* have 32"),
    "heads": (
        {"attention__key_length": 48, "attention__value_length": 48},
        "heads in layers that see all tokens have 48 elements, but those of the model have 40",
    ),
    "heads of layers with a window": (
        {"attention__key_length_swa": 24, "attention__value_length_swa": 24},
        "heads in layers that see a window have 24 elements, but those of the model have 20",
    ),
    "groups of heads": ({"attention__head_count": 4}, "its 4 heads cannot share 3 key/value heads"),
    "vocabulary": (
        {"tokenizer__ggml__tokens": [f"t{i}" for i in range(61)]},
        "token 0 is 't0', not .*vocabulary",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_an_assistant_of_another_model_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    values, message = WRONG[case]
    path = write_assistant(folder / "gemma4.gguf", tmp_path / "draft.gguf", **values)
    with pytest.raises(OptionError, match=rf"draft.gguf cannot be the draft of gemma4.gguf: .*{message}"):
        load(folder, "gemma4", draft=path)


def test_an_assistant_is_refused_alone_and_for_others_than_gemma_4(folder: Path, tmp_path: Path) -> None:
    draft = folder / "gemma4-draft.gguf"
    with pytest.raises(UnsupportedError, match=r"this is a draft.*give it along with that model.*--draft"):
        chaski.load(draft)
    other = DATA / "architectures" / "gemma3.gguf"
    with pytest.raises(OptionError, match="it is an assistant of Gemma 4, but the model is not a Gemma 4"):
        chaski.load(other, draft=write_assistant_like(other, folder, tmp_path))
    near = tmp_path / "near.gguf"
    with open_gguf(folder / "gemma4.gguf") as file:
        tensors = {
            key: data for key, data in all_tensors(file).items() if not key.startswith(("blk.1", "blk.3"))
        }
        tensors = {key.replace("blk.2.", "blk.1."): data for key, data in tensors.items()}
        sizes = {
            "block_count": 2,
            "attention.head_count_kv": [3, 3],
            "attention.sliding_window_pattern": [True] * 2,
        }
        metadata = {**file.metadata, **{f"gemma4.{key}": value for key, value in sizes.items()}}
    write_gguf(near, metadata, tensors)
    with pytest.raises(OptionError, match="sees all tokens, but the model stores no such layer"):
        chaski.load(near, draft=draft)


def write_assistant_like(other: Path, folder: Path, tmp_path: Path) -> Path:
    """Write an assistant with the tokens of another model."""
    with open_gguf(other) as file, open_gguf(folder / "gemma4-draft.gguf") as draft:
        tokens = {key: value for key, value in file.metadata.items() if key.startswith("tokenizer")}
        write_gguf(tmp_path / "draft.gguf", {**draft.metadata, **tokens}, all_tensors(draft))
    return tmp_path / "draft.gguf"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("masked_embd_centroids.weight", "does not assign all tokens to 0 clusters"),
        ("twice", "does not assign all tokens to 12 clusters"),
        ("none", "centroid_top_k is 0; it must be at least 1"),
    ],
)
def test_clusters_that_are_none(edit: str, message: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.gguf"
    write_assistant(folder / "gemma4.gguf", path, in_clusters=True, centroid_top_k=0 if edit == "none" else 5)
    with open_gguf(path) as file:
        tensors, metadata = all_tensors(file), dict(file.metadata)
    tensors.pop(edit, None)
    if edit == "twice":
        zeros = bytes_as(np.zeros(240, np.uint8), QuantType.I32, (60,))
        tensors["masked_embd_ordering"] = zeros
    write_gguf(path, metadata, tensors)
    with pytest.raises(ModelError, match=message):
        load(folder, "gemma4", draft=path)
