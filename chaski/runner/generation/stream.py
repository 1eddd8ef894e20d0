"""Stop strings and the pairing of text with tokens: state machines without input or output.

They lie between the UTF-8 decoder and the reader of the answer. The split of a text into tokens never
changes the text in all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from msgspec import Struct

from chaski.chat.events import Text
from chaski.errors import OptionError
from chaski.sample import Sampled

__all__ = ["PieceStream", "StopStrings", "TokenText"]


class StopStrings:
    """Passes text on until one of the stop strings is complete, and holds back text that may become one.

    The stop string that is complete first ends the text, and of several that are complete with the same
    character the longest. (The reference searches in the order of the list, so there the split into tokens
    could decide.) Time is linear in the length of the text.
    """

    def __init__(self, stops: Iterable[str], keeps: bool = False) -> None:
        """`keeps`: the stop string is shown as well."""
        self._matches = [_Match(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._keeps = keeps
        self._held = ""
        self.found: str | None = None

    def feed(self, text: str) -> tuple[str, bool]:
        """Return the text that is safe to show by now, and whether a stop string ended it."""
        assert self.found is None, "text after a stop string"
        held = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            for match in self._matches:
                if match.advance(character):
                    self.found = match.stop
                    self._held = ""
                    return held[: end if self._keeps else end - len(match.stop)], True
        length = max((match.length for match in self._matches), default=0)
        shown = len(held) - length
        self._held = held[shown:]
        return held[:shown], False

    def flush(self) -> str:
        """Return the text still held back: no stop string can become complete any more."""
        held, self._held = self._held, ""
        return held


class _Match:
    """The length of the part of one stop string that the text ends with (Knuth, Morris and Pratt 1977)."""

    def __init__(self, stop: str) -> None:
        if not stop:
            raise OptionError("option stop holds an empty string; a stop string needs at least one character")
        self.stop = stop
        self.length = 0
        # fallbacks[i]: the longest proper prefix of the stop string that its first i characters end with.
        self._fallbacks = [0, 0]
        for character in stop[1:]:
            self._fallbacks.append(self._extend(self._fallbacks[-1], character))

    def advance(self, character: str) -> bool:
        """Process one character, and return whether the stop string is complete with it."""
        self.length = self._extend(self.length, character)
        return self.length == len(self.stop)

    def _extend(self, length: int, character: str) -> int:
        while length and self.stop[length] != character:
            length = self._fallbacks[length]
        return length + (self.stop[length] == character)


class TokenText(Struct, frozen=True):
    """A sampled token and the text that it completed, which may be none."""

    text: str
    token: Sampled


class PieceStream:
    """Turns pieces into `Text` events up to a stop string.

    A token is given out with the first character that begins at or after it. So a token without text (the
    first bytes of a character, say) goes with the text that follows it, and tokens that contributed only to
    text that a stop string removed are never given out.
    """

    def __init__(self, stops: Iterable[str], keeps_stop: bool = False) -> None:
        """`keeps_stop`: the stop string is part of the text."""
        self._stops = StopStrings(stops, keeps_stop)
        self._pending: deque[tuple[int, Sampled]] = deque()  # where its text begins, token
        self._fed = 0
        self._shown = 0

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.found

    @property
    def num_pending(self) -> int:
        """Number of tokens not given out; after a stop string, of those that it dropped."""
        return len(self._pending)

    def feed(self, piece: TokenText, may_stop: bool = True) -> tuple[Text | None, bool]:
        """Return the event that is ready, if any, and whether a stop string ended the text.

        Without `may_stop` the piece is not part of a stop string. Later ones may be.
        """
        self._pending.append((self._fed, piece.token))
        self._fed += len(piece.text)
        text, is_stopped = self._stops.feed(piece.text) if may_stop else (piece.text, False)
        return self._event(text), is_stopped

    def flush(self, tail: str = "") -> Text | None:
        """End the text with the decoder's last characters; a stop string may still end it earlier."""
        text, is_stopped = self._stops.feed(tail)
        if is_stopped:
            return self._event(text)
        return self._event(text + self._stops.flush(), is_last=True)

    def _event(self, text: str, *, is_last: bool = False) -> Text | None:
        self._shown += len(text)
        tokens: list[Sampled] = []
        while self._pending and (is_last or self._pending[0][0] < self._shown):
            tokens.append(self._pending.popleft()[1])
        if not text and not tokens:
            return None
        logprobs = tuple(token for token in tokens if token.logprob is not None)
        return Text(text, tuple(token.token_id for token in tokens), logprobs)
