"""A model that computes NaN for a token of a prompt: an error instead of any returned number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import chaski
from chaski.errors import ModelError, SamplingError
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.runner.generation.prompt_scores import PromptScorer
from chaski.sample.sampler import scored
from tests.rewriting import all_tensors, bytes_as

PHI3 = Path(__file__).parents[2] / "data/architectures/phi3.gguf"  # with a window of 24 in each layer
BAD = 7
PROMPT = [5, 6, BAD, *range(8, 60), *range(8, 60), *range(8, 30)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model in which one token gives NaN."""
    file = open_gguf(PHI3)
    tensors = all_tensors(file)
    info = file.tensors["token_embd.weight"]
    assert info.type is QuantType.F32
    data = np.array(info.data).view(np.float32).reshape(info.shape)
    data[BAD] = np.nan
    tensors["token_embd.weight"] = bytes_as(data.view(np.uint8).ravel(), info.type, info.shape)
    path = tmp_path_factory.mktemp("model") / "bad.gguf"
    write_gguf(path, dict(file.metadata), tensors)
    return path


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_nan_in_the_middle_of_a_prompt_is_an_error(path: Path, backend: str) -> None:
    with chaski.load(path, context=160, backend=backend, prompt_cache=False) as model:
        if backend == "reference":  # the last token does not see it
            assert model.generate(PROMPT, num_predict=1, temperature=0).token_ids
        with pytest.raises(ModelError, match=r"the logits of token \d of 129"):
            model.logits(PROMPT)
        with pytest.raises(SamplingError, match=r"token [0-2] of the prompt: logit \d+ is nan"):
            model.generate(PROMPT, num_predict=1, prompt_logprobs=2)
        assert np.isfinite(model.logits(PROMPT[:2])).all()


def test_scores_of_logits_that_are_no_numbers() -> None:
    row = np.zeros(10, np.float32)
    for number in (np.nan, np.inf):
        row[4] = number
        with pytest.raises(SamplingError, match="logit 4 is"):
            scored(row, 3, 2)
    scorer = PromptScorer([1, 2, 3], 1)
    scorer.take(0, np.stack([np.zeros(10, np.float32), row]))
    with pytest.raises(SamplingError, match="token 1 of the prompt: logit 4 is inf"):
        scorer.event()
