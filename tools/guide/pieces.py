"""The word pieces of the guide's encoder: words that MiniLM knows, and parts of all others.

MiniLM cuts words with a WordPiece vocabulary, for which chaski needs a package. The guide's file uses the
kind of Llama 3 instead, which chaski reads without a package: a word that is a piece is used whole, and
others are merged from bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor

from chaski.guide.answers import spread
from chaski.guide.spelling import known_words

__all__ = ["BEGIN", "END", "LONGEST", "Pieces", "trained_pieces"]

LONGEST = 64
"""Number of tokens of a text that the encoder reads; later tokens are ignored."""

BEGIN, END = "[CLS]", "[SEP]"

_LLAMA3_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPACE = "Ġ"


class Pieces:
    """The tokens and merges of the file, and their tokenizer."""

    def __init__(self, tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        self.tokens, self.merges = list(tokens), list(merges)
        places = {token: place for place, token in enumerate(tokens)}
        self.tokenizer = _tokenizer(BPE(places, self.merges, ignore_merges=True))
        self.tokenizer.add_special_tokens([AddedToken(each, special=True) for each in (BEGIN, END)])
        self._begin, self._end = places[BEGIN], places[END]
        self._words = known_words(tokens)

    def ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of each text, with its begin and end tokens."""
        encoded = self.tokenizer.encode_batch([spread(text, self._words) for text in texts])
        return [[self._begin, *encoding.ids[: LONGEST - 2], self._end] for encoding in encoded]

    def rows_of(self, encoder: Path, embeddings: Tensor) -> Tensor:
        """Return the initial row of each piece: MiniLM's row, or the mean of the rows of MiniLM's pieces."""
        described = json.loads((encoder / "tokenizer.json").read_text())
        places: dict[str, int] = described["model"]["vocab"]
        theirs = Tokenizer.from_str(json.dumps({**described, "padding": None, "post_processor": None}))
        rows = []
        for token in self.tokens:
            letters = _letters(token)
            ids = [places[token]] if token in (BEGIN, END) else theirs.encode(letters.strip()).ids
            if not letters.startswith(" ") and f"##{letters}" in places:
                ids = [places[f"##{letters}"]]
            rows.append(embeddings[ids].mean(0) if ids else embeddings[places["[UNK]"]])
        return torch.stack(rows)


def trained_pieces(encoder: Path, texts: Sequence[str], merged: int, least: int, size: int) -> Pieces:
    """Return merged pieces, words that occur at least `least` times, and common words.

    `size`: the total number of pieces.
    """
    trained = _tokenizer(BPE())
    trainer = BpeTrainer(
        vocab_size=merged, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    trained.train_from_iterator(map(spread, texts), trainer)
    model = json.loads(trained.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert trained.pre_tokenizer is not None
    counts = Counter(
        word for text in texts for word, _ in trained.pre_tokenizer.pre_tokenize_str(spread(text))
    )
    known = json.loads((encoder / "tokenizer.json").read_text())["model"]["vocab"]
    common = [token for token in sorted(known, key=known.__getitem__) if token.isascii() and token.isalpha()]
    words = [word for word, count in counts.most_common() if count >= least]
    words += [_SPACE + token for token in common if len(token) > 2]
    every = list(dict.fromkeys([BEGIN, END, *tokens, *words]))[:size]
    return Pieces(every, [(left, right) for left, right in model["merges"]])


def _tokenizer(model: BPE) -> Tokenizer:
    """Return a tokenizer that cuts text like Llama 3 and passes the bytes of the pieces to `model`."""
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(_LLAMA3_PIECES), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return tokenizer


def _letters(token: str) -> str:
    """Return the text of a token; only its ASCII letters matter."""
    return token.replace(_SPACE, " ")
