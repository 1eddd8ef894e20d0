"""Tokens that a checkpoint's generation suppresses: converted, read, and never generated."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert
from chaski.errors import TokenizerError
from chaski.formats.gguf import open_gguf
from chaski.text.tokenizer import load_tokenizer

DATA = Path(__file__).parents[1] / "data" / "gemma4" / "unified"
PROMPT = "The runner carries the message over the mountains."


def converted(folder: Path, suppressed: Any) -> Path:
    shutil.copytree(DATA, folder / "in")
    (folder / "in" / "generation_config.json").write_text(json.dumps({"suppress_tokens": suppressed}))
    convert(folder / "in", folder / "out.gguf", "F32")
    return folder / "out.gguf"


def test_suppressed_tokens_are_never_answered(tmp_path: Path) -> None:
    """Greedy and drawn tokens are never suppressed ones, and logits do not change."""
    with np.load(DATA / "expected.npz") as arrays:
        usual, last = arrays["text.answer"], arrays["text.logits"][-1]
    ids = [*sorted(set(usual.tolist()))[:6], int(usual[0])]
    best = int(np.argmax(np.where(np.isin(np.arange(last.size), ids), -np.inf, last)))
    with chaski.load(converted(tmp_path, ids), context=128, kv_type="f32") as model:
        assert model.tokenizer.suppressed_ids == set(ids)
        greedy = model.generate(PROMPT, temperature=0, num_predict=24, ignore_eos=True)
        drawn = model.generate(PROMPT, temperature=2.0, num_predict=60, seed=1, ignore_eos=True)
        np.testing.assert_allclose(model.logits(PROMPT)[-1], last, rtol=0, atol=1e-3)
    assert greedy.token_ids[0] == best != usual[0]
    assert not {*greedy.token_ids, *drawn.token_ids} & set(ids)


@pytest.mark.parametrize("suppressed", ["all", [1.5], [100000], [True]])
def test_what_is_no_list_of_tokens_is_refused(suppressed: Any, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="'suppress_tokens' is"):
        converted(tmp_path, suppressed)


def test_files_may_name_tokens_that_they_do_not_have(tmp_path: Path) -> None:
    key = "tokenizer.ggml.suppress_tokens"
    with open_gguf(converted(tmp_path, [5])) as file:
        assert file.get(key, list[int]).tolist() == [5]
        many = {**file.metadata, key: np.array([5, -1, 10**6], np.int32)}
        assert load_tokenizer(many).suppressed_ids == {5}
        with pytest.raises(TokenizerError, match="suppress_tokens is list, expected ids"):
            load_tokenizer({**file.metadata, key: ["a"]})
