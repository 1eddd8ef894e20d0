"""WordPiece (BERT, Devlin et al. 2018), `tokenizer.ggml.model` = `bert`: the longest token of a word first.

GGUF marks tokens that begin a word with ▁, and leaves tokens that continue one unmarked; WordPiece marks the
latter with ##. Hugging Face `tokenizers` does the rest as in BERT's own code: cleaning, case, accents, and
splitting at Chinese characters and punctuation.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from msgspec import Struct

from chaski.errors import TokenizerError, optional_package
from chaski.text.tokenizer.codec import Codec
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary, read_scalar, string_list

if TYPE_CHECKING:
    import tokenizers

_BEGINS, _CONTINUES = "▁", "##"


class WordPieceOptions(Struct, frozen=True):
    """WordPiece's normalization: lowercase, and without accents (None: the same as `lowercase`)."""

    lowercase: bool
    strip_accents: bool | None

    @classmethod
    def read(cls, metadata: Mapping[str, object]) -> WordPieceOptions:
        """Read the file's metadata; the defaults are those of BERT's uncased models."""
        lowercase = read_scalar(metadata, "normalizer.lowercase", bool)
        return cls(lowercase is not False, read_scalar(metadata, "normalizer.strip_accents", bool))


class WordPiece(Codec):
    """Encodes text with a vocabulary that has a token for words that it cannot spell."""

    prefix_space = True

    def __init__(self, vocabulary: Vocabulary, spelling: WordPieceOptions) -> None:
        if vocabulary.unknown_id is None:
            raise TokenizerError(f"{PREFIX}unknown_token_id is missing: WordPiece requires it")
        self._vocabulary = vocabulary
        self._unknown = vocabulary.tokens[vocabulary.unknown_id]
        self._spelling = spelling

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Return the token ids of each text."""
        return [encoding.ids for encoding in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are found before words are."""
        return False

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the bytes of the token, with a leading space if it begins a word."""
        if kind != TokenType.USER_DEFINED and token.startswith(_BEGINS):
            token = " " + token.removeprefix(_BEGINS)
        return token.encode("utf-8", "surrogateescape")

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        with optional_package("tokenizers", "embeddings", "a vocabulary of the kind WordPiece"):
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        encoder = Tokenizer(models.WordPiece(self._ids(), unk_token=self._unknown))
        encoder.normalizer = normalizers.BertNormalizer(
            lowercase=self._spelling.lowercase, strip_accents=self._spelling.strip_accents
        )
        encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return encoder

    def _ids(self) -> dict[str, int]:
        """Return the id of each token that words consist of, by WordPiece's spelling."""
        tokens = string_list(self._vocabulary.tokens, "tokens")
        ids = {_in_words(tokens[i]): i for i in self._vocabulary.ids_of_type(TokenType.NORMAL)}
        assert self._vocabulary.unknown_id is not None
        return ids | {self._unknown: self._vocabulary.unknown_id}


def _in_words(token: str) -> str:
    return token.removeprefix(_BEGINS) if token.startswith(_BEGINS) else _CONTINUES + token
