"""SentencePiece unigram (Kudo 2018), `tokenizer.ggml.model` = `t5`: the likeliest sequence of pieces.

Hugging Face `tokenizers` does the work, as in the published tokenizers of XLM-RoBERTa and T5. It replaces
characters by the file's table and, unlike `sentencepiece`, never reads memory out of bounds, whatever the
table contains.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from chaski.errors import TokenizerError, optional_package
from chaski.text.tokenizer.codec import Codec
from chaski.text.tokenizer.pieces import SPACE, find_bytes, find_unknown, piece_bytes
from chaski.text.tokenizer.sentencepiece import AS_WRITTEN, NormalizerSettings
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType, Vocabulary, string_list

if TYPE_CHECKING:
    import tokenizers

__all__ = ["Unigram"]

_LONGEST = 128  # bytes of a piece; encoding may take the square of it for each character


class Unigram(Codec):
    """Encodes text with pieces and the logarithms of their probabilities."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        scores: NDArray[np.float32],
        normalizer: NormalizerSettings,
        charsmap: bytes,
    ) -> None:
        self._vocabulary = vocabulary
        self._scores = scores
        self._normalizer = normalizer
        self._charsmap = charsmap
        self._unknown = find_unknown(vocabulary)
        self._bytes = find_bytes(vocabulary)

    @property
    def prefix_space(self) -> bool:
        """Return whether `encode` puts a space before every text."""
        return self._normalizer.add_space_prefix

    def encode(self, texts: list[str], continues: bool = False) -> list[list[int]]:
        """Return the token ids of each text.

        The first call builds the trie of pieces and raises `TokenizerError` for a vocabulary that cannot be
        used.
        """
        # The library's fast mode does not report which text has no piece.
        encoder = self._continuing_encoder if continues else self._encoder
        run = encoder.encode_batch if self._bytes else encoder.encode_batch_fast
        try:
            found = run(texts, add_special_tokens=False)
        except BaseException as error:
            # A panic of the library is not an Exception, and its class cannot be imported.
            if type(error).__name__ != "PanicException":
                raise
            raise TokenizerError(f"the tokenizer cannot encode this text: {str(error)[:200]}") from error
        return [self._spelled(encoding) if self._bytes else encoding.ids for encoding in found]

    def finds(self, user_defined: str) -> bool:
        """Return False: such tokens are found before text is cut into pieces."""
        return False

    def token_bytes(self, token: str, kind: int) -> bytes:
        """Return the byte that a byte token names, else the text of the piece with spaces for U+2581."""
        return piece_bytes(token, kind)

    def _spelled(self, encoding: tokenizers.Encoding) -> list[int]:
        """Return the ids, with byte tokens for text that has no piece."""
        ids: list[int] = []
        for token_id, text in zip(encoding.ids, encoding.tokens, strict=True):
            is_known = token_id != self._unknown
            ids += (token_id,) if is_known else (self._bytes[byte] for byte in text.encode())
        return ids

    @cached_property
    def _encoder(self) -> tokenizers.Tokenizer:
        return self._built(self._normalizer)

    @cached_property
    def _continuing_encoder(self) -> tokenizers.Tokenizer:
        return self._encoder if self._normalizer == AS_WRITTEN else self._built(AS_WRITTEN)

    def _built(self, settings: NormalizerSettings) -> tokenizers.Tokenizer:
        with optional_package("tokenizers", "embeddings", "a vocabulary of the kind unigram"):
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        pieces = self._pieces()
        encoder = Tokenizer(models.Unigram(pieces, self._unknown))
        encoder.normalizer = normalizers.Sequence(self._normalizers(settings))
        # This caches words instead of whole texts. It is impossible if a piece extends into the next word.
        if not any(SPACE in text[1:] for text, _ in pieces):
            encoder.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
        return encoder

    def _normalizers(self, settings: NormalizerSettings) -> list[Any]:
        from tokenizers import Regex, normalizers

        steps: list[Any] = [normalizers.Precompiled(self._charsmap)] if self._charsmap else []
        if settings.remove_extra_whitespaces:
            steps += [normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")]
        steps.append(normalizers.Replace(" ", SPACE))
        return [*steps, normalizers.Prepend(SPACE)] if settings.add_space_prefix else steps

    def _pieces(self) -> list[tuple[str, float]]:
        """Return the spelling and score of each token. Tokens that text must not become contain a space."""
        tokens = string_list(self._vocabulary.tokens, "tokens")
        normal = self._vocabulary.types == TokenType.NORMAL
        normal[self._unknown] = False
        if not normal.any():
            raise TokenizerError(f"{PREFIX}token_type: no token is a piece of text")
        # An unused token must not have the lowest score, because that sets the cost of an unknown character.
        best = float(self._scores[normal].max())
        pieces = [(f" {i}", best) for i in range(len(tokens))]
        for i in np.flatnonzero(normal).tolist():
            size = len(tokens[i].encode())
            if size > _LONGEST:
                raise TokenizerError(
                    f"{PREFIX}tokens[{i}] has {size} bytes; the limit for a piece is {_LONGEST}"
                )
            if size:
                pieces[i] = tokens[i], float(self._scores[i])
        return pieces
