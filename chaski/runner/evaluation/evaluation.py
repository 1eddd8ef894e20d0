"""`evaluate`: scores the tokens of a text by a model, alone or against a reference."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice

import numpy as np
import numpy.typing as npt

from chaski.errors import ChaskiError, OptionError
from chaski.runner.engine.outputs import Outputs
from chaski.runner.evaluation.chunks import Chunks
from chaski.runner.evaluation.records import Records
from chaski.runner.evaluation.scores import Scores, compared, scored
from chaski.runner.llm import LLM
from chaski.text.tokenizer import Tokenizer

__all__ = ["BATCH_OUTPUTS", "check_same_tokens", "evaluate"]

F32 = npt.NDArray[np.float32]

BATCH_OUTPUTS = 128
"""Rows of logits in a batch. The memory for logits is a few times as large."""


def evaluate(
    load: Callable[[ExitStack], Sequence[LLM]],
    chunks: Chunks,
    num_chunks: int,
    records: Records,
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Add the scores of the chunks, up to the first `num_chunks`, that the records do not have.

    load: loads the model and, if there is one, the reference; called if a chunk is missing. Both are closed
        with the stack.
    progress: called with the number of chunks that are done.
    """
    if len(records) >= num_chunks:
        return
    with ExitStack() as closing:
        models = load(closing)
        _check_same_size(models)
        for index in range(len(records), num_chunks):
            progress(index)
            records.append(_chunk_scores(models, chunks[index], chunks.num_unscored))
        progress(num_chunks)


def check_same_tokens(tokenizer: Tokenizer, other: Tokenizer, chunks: Chunks, text: str) -> None:
    """Raise OptionError if the tokenizer of the reference splits the text into other tokens."""
    if Chunks.of(text, other, chunks.context) != chunks or tokenizer.size != other.size:
        raise OptionError(
            "the two files split the text into different tokens, so their predictions cannot be compared; "
            "choose a reference of the same model, such as its F16 file"
        )


def _check_same_size(models: Sequence[LLM]) -> None:
    sizes = {model.vocab_size for model in models}
    if len(sizes) > 1:
        raise OptionError(
            f"the two files have logits for {' and '.join(map(str, sorted(sizes)))} tokens, so their "
            "predictions cannot be compared; choose a reference of the same model, such as its F16 file"
        )


def _chunk_scores(models: Sequence[LLM], token_ids: Sequence[int], num_unscored: int) -> Scores:
    """Score the tokens of a chunk after the first `num_unscored`, some rows of logits at a time."""
    streams = [_logits(model, token_ids[:-1], num_unscored - 1) for model in models]
    targets = iter(token_ids[num_unscored:])
    found: list[Scores] = []
    try:
        for rows in _together(streams):
            following = list(islice(targets, len(rows[0])))
            found.append(
                scored(rows[0], following) if len(rows) == 1 else compared(rows[0], rows[1], following)
            )
    finally:
        for stream in streams:
            stream.close()
    return np.concatenate(found)


def _logits(model: LLM, token_ids: Sequence[int], begin: int) -> Generator[F32, None, None]:
    """Yield the logits after each token from `begin` on, in parts (n, vocabulary), as they are computed."""
    sequence = model.prompts.streamed(token_ids, range(begin, len(token_ids)))
    left = len(token_ids) - begin
    try:
        model.engine.submit(sequence)
        while left:
            model.engine.wait(sequence)
            event = sequence.events.popleft()
            if isinstance(event, ChaskiError):
                raise event
            assert isinstance(event, Outputs)
            left -= len(event.rows)
            yield event.rows
    finally:
        sequence.cancel()


def _together(streams: Sequence[Iterator[F32]]) -> Iterator[list[F32]]:
    """Yield parts of equal length of streams that have the same number of rows in all."""
    parts: list[F32] = []
    for first in streams[0]:
        parts = parts or [first[:0]] * len(streams)
        parts[0] = first
        while len(parts[0]):
            for place, stream in enumerate(streams):
                if not len(parts[place]):
                    parts[place] = next(stream)
            count = min(map(len, parts))
            yield [part[:count] for part in parts]
            parts = [part[count:] for part in parts]
