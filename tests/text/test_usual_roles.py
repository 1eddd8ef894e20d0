"""Files that do not name the tokens around texts get llama.cpp's ids for their kind."""

from __future__ import annotations

from typing import Any

import pytest

from chaski.text.tokenizer import load_tokenizer
from tests.text.token_fixtures import KEY, sentencepiece_metadata, unigram_metadata


def without_roles(metadata: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metadata.items() if not key.endswith(("_token_id", "s_token"))}


@pytest.mark.parametrize("says", [True, None])
def test_sentencepiece(says: bool | None) -> None:
    metadata = without_roles(sentencepiece_metadata())
    metadata |= {} if says is None else {f"{KEY}add_bos_token": says, f"{KEY}add_eos_token": says}
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.bos_id == 1
    assert 2 in tokenizer.eos_ids
    ids = tokenizer.encode("the")
    assert ids[0] == 1
    assert (ids[-1] == 2) == (says is True)


def test_unigram() -> None:
    tokenizer = load_tokenizer(without_roles(unigram_metadata()))
    assert tokenizer.bos_id is None
    assert tokenizer.encode("the")[-1] == 1


def test_ids_that_the_file_names_go_first() -> None:
    metadata = without_roles(sentencepiece_metadata()) | {f"{KEY}bos_token_id": 5, f"{KEY}eos_token_id": 6}
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.bos_id == 5
    assert 2 not in tokenizer.eos_ids or tokenizer.token(2) == "</s>"


def test_a_smaller_vocabulary_has_none_of_them() -> None:
    metadata = without_roles(sentencepiece_metadata())
    few = {f"{KEY}{name}": metadata[f"{KEY}{name}"][:2] for name in ("tokens", "scores", "token_type")}
    assert load_tokenizer(metadata | few).eos_ids == frozenset()
