"""`Chunks`: a text as pieces of one length, as llama.cpp's tool `llama-perplexity` cuts it.

The model reads each chunk without the one before. Only the second half of a chunk is scored, so that every
scored token has at least half a chunk of context. Tokens after the last whole chunk are not used. For models
whose texts begin with a special token, it replaces the first token of every chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from msgspec import Struct

from chaski.errors import OptionError
from chaski.text.tokenizer import Tokenizer

__all__ = ["USUAL_CONTEXT", "Chunks"]

USUAL_CONTEXT = 512
"""Tokens of a chunk, as in llama.cpp's tool."""


class Chunks(Struct, frozen=True):
    """The token ids of a text, and how they are cut.

    context: tokens of a chunk
    first_id: the token that begins every chunk; None to keep the text's own token
    """

    token_ids: Sequence[int]
    context: int
    first_id: int | None

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer, context: int) -> Chunks:
        """Cut a text. Raises OptionError for a text that is shorter than one chunk."""
        ids = tokenizer.encode(text, add_special=True, parse_special=False)
        if len(ids) < context:
            raise OptionError(
                f"the text has {len(ids)} tokens, but one chunk has {context}; use a longer text or a "
                "smaller --context"
            )
        return cls(ids, context, tokenizer.added_first)

    def __len__(self) -> int:
        """The number of whole chunks."""
        return len(self.token_ids) // self.context

    def __getitem__(self, index: int) -> list[int]:
        """Return the token ids of a chunk."""
        begin = index * self.context
        ids = list(self.token_ids[begin : begin + self.context])
        return ids if self.first_id is None else [self.first_id, *ids[1:]]

    @property
    def num_unscored(self) -> int:
        """Tokens at the beginning of a chunk that only serve as context."""
        return self.context // 2 + 1

    @property
    def num_scored(self) -> int:
        """Scored tokens of a chunk."""
        return self.context - self.num_unscored

    @property
    def digest(self) -> str:
        """A hash of all token ids and of the special token."""
        found = blake2b(np.array(self.token_ids, np.int32).tobytes(), digest_size=16)
        found.update(repr(self.first_id).encode())
        return found.hexdigest()
