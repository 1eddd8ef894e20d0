"""Handing sequences to an engine and reading what becomes of them."""

from __future__ import annotations

from collections.abc import Generator
from collections.abc import Sequence as Items
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from chaski.chat.answer import Answer, collect
from chaski.chat.answer_parser import AnswerParser
from chaski.chat.events import Done, Event
from chaski.chat.several import ProgressOption, Request, progress_of
from chaski.errors import ChaskiError
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.outputs import Outputs
from chaski.runner.engine.sequence import Sequence

__all__ = ["answers_of", "events_of", "outputs_of"]

_Events: TypeAlias = Generator[Event, None, None]


def events_of(engine: Engine, sequence: Sequence, parser: AnswerParser | None = None) -> _Events:
    """The events of one answer as they come. Raises the error that ends it."""
    try:
        engine.submit(sequence)
        yield from _until_done(engine, sequence, parser)
    except BaseException:
        # Here and below: a Ctrl-C that comes just when one of them begins does not get past both.
        sequence.cancel()
        raise
    finally:
        sequence.cancel()


def answers_of(
    engine: Engine,
    begun: Items[tuple[Request, Sequence, AnswerParser | None]],
    progress: ProgressOption,
) -> list[Answer]:
    """Whole answers in order, computed together. An error of one ends all, and names its place."""
    answers: list[Answer] = []
    sequences = [sequence for _, sequence, _ in begun]
    try:
        with progress_of(progress, f"{len(sequences)} answers") as tell:
            for sequence in sequences:
                engine.submit(sequence)
            for request, sequence, parser in begun:
                with request.naming():
                    answers.append(collect(_until_done(engine, sequence, parser)))
                tell(len(answers) / len(sequences))
    except BaseException:
        _cancel(sequences)
        raise
    finally:
        _cancel(sequences)
    return answers


def outputs_of(engine: Engine, sequences: Items[Sequence]) -> list[npt.NDArray[np.float32]]:
    """The results of sequences that make no text."""
    try:
        for sequence in sequences:
            engine.submit(sequence)
        events = [_next(engine, sequence) for sequence in sequences]
    except BaseException:
        _cancel(sequences)
        raise
    finally:
        _cancel(sequences)
    return [event.rows for event in events if isinstance(event, Outputs)]


def _until_done(engine: Engine, sequence: Sequence, parser: AnswerParser | None) -> _Events:
    while True:
        event = _next(engine, sequence)
        assert not isinstance(event, Outputs)
        yield from (event,) if parser is None else parser.read(event)
        if isinstance(event, Done):
            return


def _next(engine: Engine, sequence: Sequence) -> Event | Outputs:
    """Return the next event or outputs of a sequence. Raises the error that ended it."""
    engine.wait(sequence)
    event = sequence.events.popleft()
    if isinstance(event, ChaskiError):
        raise event
    return event


def _cancel(sequences: Items[Sequence]) -> None:
    for sequence in sequences:
        sequence.cancel()
