"""The events of one answer of a beam search, which are known all at once."""

from __future__ import annotations

from collections.abc import Iterator

from chaski.chat.events import DoneReason, Event
from chaski.runner.beams.candidates import Hypothesis
from chaski.runner.generation.request import GenerationRequest, TextDecoder
from chaski.runner.generation.stream import PieceStream, TokenText
from chaski.sample import Sampled

__all__ = ["text_events"]


def text_events(request: GenerationRequest, found: Hypothesis) -> tuple[list[Event], DoneReason, str | None]:
    """Return the events of an answer's text, the reason of its end, and the stop text that cut it, if any."""
    pieces = PieceStream(request.stop, request.keeps_stop)
    events = [] if request.decoder is None else list(_texts(request, request.decoder, found, pieces))
    return events, "length" if found.is_cut and pieces.stop_string is None else "stop", pieces.stop_string


def _texts(
    request: GenerationRequest, decoder: TextDecoder, found: Hypothesis, pieces: PieceStream
) -> Iterator[Event]:
    """Yield the pieces of an answer, up to the stop text that cuts it."""
    for one in found.answer:
        if one.token_id in request.end_ids and one.token_id not in request.shown_ends:
            continue
        shown = one if request.sampling.logprobs else Sampled(one.token_id)
        event, _ = pieces.feed(TokenText(decoder.feed(one.token_id), shown))
        if event is not None:
            yield event
        if pieces.stop_string is not None:
            return
    if (event := pieces.flush(decoder.flush())) is not None:
        yield event
