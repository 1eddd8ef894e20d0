"""T5: an encoder reads the prompt. Against transformers, and with the same bits however it is computed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.errors import ContextLengthError, UnsupportedError
from chaski.formats.gguf import open_gguf
from chaski.formats.requantize import plan_types, requantize
from tests.model.test_families import is_of_model, plain
from tests.t5 import VARIANTS, converted, known, logits_after

LOADING: dict[str, Any] = {"context": 128, "threads": 1, "parallel": 4}
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "num_predict": 24}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(variant: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted(variant, tmp_path_factory.mktemp("t5"))


def test_logits_and_greedy_tokens_are_those_of_transformers(variant: str, path: Path) -> None:
    about = known()[variant]
    prompt, tokens = about["prompt"].tolist(), about["tokens"].tolist()
    with chaski.load(path, **LOADING, kv_type="f32") as model:
        found = logits_after(model, prompt, tokens)
        answer = model.generate(prompt, **GREEDY)
    np.testing.assert_allclose(found[about["places"]], about["logits"], rtol=0, atol=1e-3)
    assert answer.token_ids == tuple(tokens)
    assert answer.done.prompt_tokens == len(prompt)


def test_the_file_is_that_of_llama_cpps_converter(variant: str, path: Path) -> None:
    wanted = known()[variant]["file"]
    with open_gguf(path) as file:
        tensors = {
            tensor.name: [list(tensor.shape), hashlib.sha256(tensor.data).hexdigest()[:16]]
            for tensor in file.tensors.values()
        }
        metadata = {key: plain(value) for key, value in file.metadata.items() if is_of_model(key)}
    assert tensors == wanted["tensors"]
    assert metadata == wanted["metadata"]


@pytest.mark.parametrize("kind", ["as it is", "Q4_0"])
def test_bits_do_not_depend_on_threads_batches_and_others(
    variant: str, path: Path, kind: str, tmp_path: Path
) -> None:
    if kind != "as it is":
        with open_gguf(path) as file:
            requantize(file, tmp_path / "quantized.gguf", plan_types(file, kind))
        path = tmp_path / "quantized.gguf"
    prompt, tokens = (known()[variant][key].tolist() for key in ("prompt", "tokens"))
    prompts = [prompt[:length] for length in (90, 7, 33, 1)]
    with chaski.load(path, **LOADING) as model:
        whole = logits_after(model, prompt, tokens)
        together = model.generate_many(prompts, **GREEDY, logprobs=True)
        alone = [model.generate(each, **GREEDY, logprobs=True) for each in prompts]
        again = model.generate(prompts[0], **GREEDY, logprobs=True)
    assert [each.logprobs for each in together] == [each.logprobs for each in alone]
    assert again.logprobs == alone[0].logprobs
    with chaski.load(path, **{**LOADING, "threads": 2}, num_batch=4, prompt_cache=False) as other:
        np.testing.assert_array_equal(logits_after(other, prompt, tokens), whole)
        assert other.generate(prompts[2], **GREEDY, logprobs=True).logprobs == alone[2].logprobs


@pytest.fixture(scope="module")
def flan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return converted("flan", tmp_path_factory.mktemp("flan"))


def test_seeds_forms_and_conversations_work(flan: Path) -> None:
    with chaski.load(flan, **LOADING) as model:
        one, two = (model.generate("Hello", num_predict=12, temperature=1.0, seed=3) for _ in range(2))
        assert one.token_ids == two.token_ids
        assert model.generate("Hello", choice=["yes", "no"]).text in {"yes", "no"}
        messages = [{"role": "user", "content": "Hello"}]
        answer = model.chat(messages, num_predict=8, temperature=0)
        assert len(answer.token_ids) == 8
        assert answer.done.prompt_tokens > 1
        beams = model.generate("Hello", num_predict=6, num_beams=3)
        assert 0 < len(beams.token_ids) <= 6
        shapes = model.logits("Hello").shape
        assert shapes == (1, model.vocab_size)


def test_a_prompt_fits_into_the_context(flan: Path) -> None:
    with chaski.load(flan, context=16, threads=1) as model:
        assert len(model.generate([5] * 16, num_predict=4, temperature=0, ignore_eos=True).token_ids) == 4
        with pytest.raises(ContextLengthError):
            model.generate([5] * 17)
        assert model.generate([5] * 30, truncate=True, num_predict=2).done.dropped_tokens == 14


def test_what_is_read_by_an_encoder_is_no_picture(flan: Path) -> None:
    with chaski.load(flan, context=32, threads=1) as model:
        assert not model.has_vision
        with pytest.raises(UnsupportedError, match="does not see images"):
            model.generate("a", images=[b"\x89PNG"])
