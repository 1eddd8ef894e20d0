"""Unigram tokenizers of checkpoints, in both of their forms, become the same metadata."""

from __future__ import annotations

import io
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from chaski.convert.config import Config
from chaski.convert.tokenizer import tokenizer_metadata
from chaski.convert.tokenizer.sentencepiece_model import read_model
from chaski.errors import ChaskiError, TokenizerError, UnsupportedError
from chaski.text.tokenizer import load_tokenizer
from tests.convert.test_tokenizer_types import OTHERS, changed, places
from tests.text.token_fixtures import KEY, fixture, unigram_metadata

SIZE = len(fixture("unigram")["tokens"])
TABLE: np.ndarray = unigram_metadata()[KEY + "precompiled_charsmap"]


def published() -> dict[str, Any]:
    """Return the `tokenizer.json` of XLM-RoBERTa."""
    expected = fixture("unigram")
    tokenizer = Tokenizer(Unigram(list(zip(expected["tokens"], expected["scores"], strict=True)), 3))
    tokenizer.normalizer = normalizers.Precompiled(TABLE.tobytes())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
        ]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    values: dict[str, Any] = json.loads(tokenizer.to_str())
    return values


def converted(folder: Path, size: int = SIZE) -> dict[str, Any]:
    config = {
        "vocab_size": size,
        "type_vocab_size": 1,
        "unk_token_id": 3,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return tokenizer_metadata(folder, Config(folder / "config.json", config), {})


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ([1.5, 0.0], r"token 7 is 1.5, which is no text"),
        (["a", 1e39], r"token 7 has the score 1e\+39, which is no float32"),
    ],
)
def test_a_token_that_cannot_be_stored(entry: list[Any], reason: str, tmp_path: Path) -> None:
    values = published()
    values["model"]["vocab"][7] = entry
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(TokenizerError, match=f"tokenizer.json: {reason}"):
        converted(tmp_path)


def test_of_a_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(published()))
    found, expected = converted(tmp_path), unigram_metadata()
    assert found.pop(f"{KEY}pre") == "default"
    assert found.pop(f"{KEY}token_type_count") == 1
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(
            np.asarray(found[key]), np.asarray(value, np.asarray(found[key]).dtype), key
        )
    assert load_tokenizer(found).encode("true") == load_tokenizer(expected).encode("true")


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "spiece.model"])
def test_of_a_model_of_sentencepiece(name: str, tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a true story of ﬁve things", "a story of a thing"] * 9),
        model_writer=model,
        model_type="unigram",
        vocab_size=40,
        hard_vocab_limit=False,
        normalization_rule_name="nfkc",
        minloglevel=2,
    )
    (tmp_path / name).write_bytes(model.getvalue())
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    found = converted(tmp_path, len(pieces) + 2)
    ids = load_tokenizer(found).encode(" a  true ﬁ")
    assert found[f"{KEY}model"] == "t5"
    assert found[f"{KEY}remove_extra_whitespaces"] is True
    if name == "spiece.model":
        assert found[f"{KEY}tokens"] == [*pieces, f"[PAD{len(pieces)}]", f"[PAD{len(pieces) + 1}]"]
        assert ids == [*processor.encode(" a  true ﬁ"), 2]
    else:
        assert found[f"{KEY}tokens"] == ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], "<mask>"]
        assert list(found[f"{KEY}token_type"][:4]) == [3, 3, 3, 2]
        assert ids == [0, *(each + 1 for each in processor.encode(" a  true ﬁ")), 2]


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("normalizer", {"type": "Lowercase"}, r"the step \{'type': 'Lowercase'\} of a unigram tokenizer"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "?"}, "is not base64"),
        (
            "pre_tokenizer",
            {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"},
            "cannot be converted",
        ),
    ],
)
def test_what_cannot_be_converted(part: str, value: Any, says: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(published() | {part: value}))
    with pytest.raises((UnsupportedError, TokenizerError), match=says):
        converted(tmp_path)


def test_without_removing_spaces(tmp_path: Path) -> None:
    step = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(published() | {"pre_tokenizer": step}))
    found = converted(tmp_path)
    assert (found[f"{KEY}add_space_prefix"], found[f"{KEY}remove_extra_whitespaces"]) == (False, False)
    joined = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
    steps = {"type": "Sequence", "normalizers": [published()["normalizer"], {"type": "Strip"}, joined]}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(published() | {"pre_tokenizer": step, "normalizer": steps})
    )
    assert converted(tmp_path)[f"{KEY}remove_extra_whitespaces"] is True


def test_values_of_any_type(tmp_path: Path) -> None:
    whole = published() | {"normalizer": None}
    whole["model"]["vocab"] = whole["model"]["vocab"][:30]
    chosen = random.Random(4)
    for path in chosen.sample(list(places(whole)), 120):
        (tmp_path / "tokenizer.json").write_text(json.dumps(changed(whole, path, chosen.choice(OTHERS))))
        with suppress(ChaskiError):
            converted(tmp_path)


@pytest.mark.parametrize("data", [b"\x10\x05", b"\x0a\x02\x08\x05"], ids=["trainer", "text of a piece"])
def test_a_number_where_a_message_belongs_is_refused(data: bytes, tmp_path: Path) -> None:
    """Found by fuzzing: the trainer's settings, or the text of a piece, are a number."""
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(TokenizerError, match="not a SentencePiece model"):
        read_model(tmp_path / "tokenizer.model")
