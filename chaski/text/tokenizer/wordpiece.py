"""WordPiece (BERT, Devlin et al. 2018), `tokenizer.ggml.model` = `bert`: the longest token of a word first.

GGUF marks tokens that begin a word with ▁, and those that continue one not at all; WordPiece marks the
latter with ##. Hugging Face `tokenizers` does the rest as BERT's own code does: cleaning, case, accents, and
Chinese characters and punctuation as separate words.
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
    """The normalization of WordPiece: lowercase letters, and no accents (None: as `lowercase` says)."""

    lowercase: bool
    strip_accents: bool | None

    @classmethod
    def read(cls, metadata: Mapping[str, object]) -> WordPieceOptions:
        """Read the file's metadata; a file without it means BERT's uncased kind."""
        lowercase = read_scalar(metadata, "normalizer.lowercase", bool)
        return cls(lowercase is not False, read_scalar(metadata, "normalizer.strip_accents", bool))


class WordPiece(Codec):
    """Encodes text with a vocabulary that has a token for words that it cannot spell."""

    prefix_space = True

    def __init__(self, vocabulary: Vocabulary, spelling: WordPieceOptions) -> None:
        if vocabulary.unknown_id is None:
            raise TokenizerError(f"{PREFIX}unknown_token_id is missing: WordPiece cannot do without")
        self._vocabulary = vocabulary
        self._unknown = vocabulary.tokens[vocabulary.unknown_id]
        self._spelling = spelling

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Token ids of each text."""
        return [encoding.ids for encoding in self._encoder.encode_batch_fast(texts, add_special_tokens=False)]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are found before words are."""
        return False

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the bytes of the token, with the space in front of a word that it begins."""
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
        """Id of each token that words are made of, as WordPiece spells it."""
        tokens = string_list(self._vocabulary.tokens, "tokens")
        ids = {_in_words(tokens[i]): i for i in self._vocabulary.ids_of_type(TokenType.NORMAL)}
        assert self._vocabulary.unknown_id is not None
        return ids | {self._unknown: self._vocabulary.unknown_id}


def _in_words(token: str) -> str:
    return token.removeprefix(_BEGINS) if token.startswith(_BEGINS) else _CONTINUES + token
