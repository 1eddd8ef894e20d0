"""`Tokenizer`: special tokens and the add-BOS/EOS rules around one tokenization algorithm."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from itertools import chain, zip_longest

from chaski.errors import TokenizerError
from chaski.text.tokenizer.codec import Codec
from chaski.text.tokenizer.special import SpecialSplitter
from chaski.text.tokenizer.stream import TokenStream
from chaski.text.tokenizer.vocabulary import TokenType, Vocabulary

_SURROGATE = re.compile("[\ud800-\udfff]")
_NEVER_STRIPPING = frozenset({"<unk>", "<s>", "<|endoftext|>"})
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN)


class Tokenizer:
    """Converts text to token ids and back. Safe to use from several threads.

    If `strips_after_special`, special tokens except those in `_NEVER_STRIPPING` absorb the white space after
    them.
    """

    def __init__(self, vocabulary: Vocabulary, codec: Codec, strips_after_special: bool = False) -> None:
        self._vocabulary = vocabulary
        self._codec = codec
        self._strips_after_special = strips_after_special

    @property
    def size(self) -> int:
        """The number of tokens; ids are 0 to size - 1."""
        return len(self._vocabulary)

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if the file names one."""
        return self._vocabulary.bos_id

    @property
    def added_first(self) -> int | None:
        """The token that `encode` puts before a text; None if the file does not require one."""
        return self._vocabulary.bos_id if self._vocabulary.add_bos else None

    @property
    def eos_ids(self) -> frozenset[int]:
        """All tokens that end an answer, because the file names them or their spelling is known for it."""
        return self._vocabulary.eos_ids

    @property
    def suppressed_ids(self) -> frozenset[int]:
        """The tokens that the file excludes from answers: those that stand for images and sounds."""
        return self._vocabulary.suppressed_ids

    @property
    def prefix_space(self) -> bool:
        """Return whether `encode` puts a space before text (SentencePiece's `add_dummy_prefix`)."""
        return self._codec.prefix_space

    def prepare(self) -> None:
        """Start building the tables of `encode` in parallel with other work.

        May raise `TokenizerError`, as `encode` would.
        """
        self._codec.prepare()

    def encode(
        self, text: str, add_special: bool = True, parse_special: bool = True, continues: bool = False
    ) -> list[int]:
        """Return the token ids of a text.

        add_special: add BOS and EOS if the file requires it, even if the text already contains them
        parse_special: turn spellings of control tokens into those tokens; disable it for untrusted text
        continues: the text is in the middle of another, so no space is put before it

        User-defined tokens are always found. Lone surrogates are read as U+FFFD.
        """
        splitter = self._all_special if parse_special else self._visible_special
        texts, specials = splitter.split(_SURROGATE.sub("\ufffd", text))
        parts = [part for part in texts if part]
        begin = parts[:1] if continues and texts[0] else []
        encoded = chain(self._codec.encode(begin, continues=True), self._codec.encode(parts[len(begin) :]))
        ids: list[int] = []
        for part, special in zip_longest(texts, specials):
            ids += next(encoded) if part else ()
            ids += () if special is None else (special,)
        return self._with_added(ids) if add_special else ids

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Return the text of a whole sequence, the inverse of `encode`.

        Control tokens are omitted unless `special`; bytes that are not UTF-8 become U+FFFD.
        """
        stream = TokenStream(self, at_start=True, special=special)
        return "".join(map(stream.feed, ids)) + stream.flush()

    def stream(self, *, at_start: bool = False, special: bool = False) -> TokenStream:
        """Return a decoder for single ids. By default they continue a text; see `TokenStream`."""
        return TokenStream(self, at_start=at_start, special=special)

    def token(self, token_id: int) -> str:
        """Return the token in the file's spelling, such as `Ġhello`. Raises `TokenizerError` for a bad id."""
        if not 0 <= token_id < self.size:
            raise TokenizerError(f"token id {token_id} is outside the vocabulary of {self.size} tokens")
        return self._vocabulary.tokens[token_id]

    def token_bytes(self, token_id: int, special: bool = False) -> bytes:
        """Return the bytes that a token adds to a text: none for control tokens unless `special`."""
        token = self.token(token_id)
        kind = int(self._vocabulary.types[token_id])
        if kind not in _HIDDEN:
            return self._codec.token_bytes(token, kind)
        return token.encode("utf-8", "surrogateescape") if special else b""

    def control_ids(self) -> list[int]:
        """Return the tokens that add nothing to a text."""
        return self._vocabulary.ids_of_type(*_HIDDEN)

    def is_special(self, token_id: int) -> bool:
        """Return whether `encode` finds the token by its spelling before the algorithm reads the text."""
        return token_id in self._special_ids

    @cached_property
    def _hidden(self) -> dict[str, int]:
        return self._by_spelling(self._vocabulary.ids_of_type(*_HIDDEN))

    @cached_property
    def _visible(self) -> dict[str, int]:
        ids = self._by_spelling(self._vocabulary.ids_of_type(TokenType.USER_DEFINED))
        return {token: i for token, i in ids.items() if not self._codec.finds(token)}

    def _by_spelling(self, ids: Iterable[int]) -> dict[str, int]:
        return {token: i for i in ids if (token := self._vocabulary.tokens[i])}

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset([*self._hidden.values(), *self._visible.values()])

    @cached_property
    def _all_special(self) -> SpecialSplitter:
        return self._splitter(self._hidden | self._visible)

    @cached_property
    def _visible_special(self) -> SpecialSplitter:
        return self._splitter(self._visible)

    def _splitter(self, ids: dict[str, int]) -> SpecialSplitter:
        stripping = ids.keys() - _NEVER_STRIPPING if self._strips_after_special else frozenset[str]()
        return SpecialSplitter(ids, stripping)

    def _with_added(self, ids: list[int]) -> list[int]:
        vocabulary = self._vocabulary
        begin = [] if self.added_first is None else [self.added_first]
        end = [vocabulary.eos_id] if vocabulary.add_eos and vocabulary.eos_id is not None else []
        return [*begin, *ids, *end]
