"""Answers of models that denoise: masks that stand for the answer become tokens over several steps.

The answer is cut into blocks, which are denoised in order (Nie et al. 2025, arXiv 2502.09992). In each step
the model computes the prompt and the whole answer at once. Every mask of the block gets a token, and the most
probable ones of these stay. Nothing of a step is kept for the next one, because all tokens see each other.
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from chaski.errors import ChaskiError
from chaski.model.denoising import Denoising
from chaski.model.output_rows import OutputRows
from chaski.runner.engine.sequence import Counts
from chaski.runner.generation.answer import Answer
from chaski.runner.generation.request import GenerationRequest
from chaski.sample import Sampled, Sampler
from chaski.sample.rules import TokenRules
from chaski.sample.transforms import log_probabilities

__all__ = ["DenoisedAnswer", "Schedule"]

F32 = npt.NDArray[np.float32]


class Schedule(Struct, frozen=True):
    """An answer of `length` tokens in blocks of `block` tokens, with `steps` steps in all."""

    length: int
    block: int
    steps: int

    def steps_of(self, size: int) -> int:
        """Return the number of steps of a block of `size` tokens: its share, rounded up."""
        return min(size, max(1, -(-self.steps * size // self.length)))


class DenoisedAnswer(Answer):
    """A prompt and its answer, which is known block by block."""

    __slots__ = (
        "_block",
        "_chosen",
        "_denoising",
        "_num_written",
        "_sampler",
        "_schedule",
        "_steps_left",
    )

    def __init__(self, request: GenerationRequest, schedule: Schedule, denoising: Denoising) -> None:
        first = len(request.prompt)
        masks = [denoising.mask] * schedule.length
        super().__init__([*request.prompt, *masks], (range(first + schedule.length),))
        self.may_store = False
        self._open(request)
        self._schedule, self._denoising = schedule, denoising
        rules = request.rules or TokenRules()
        self._sampler = Sampler(
            request.sampling, replace(rules, suppressed=rules.suppressed | {denoising.mask})
        )
        self._sampler.begin(request.prompt)
        self._chosen: list[int] = []  # of blocks that are done, not written yet
        self._num_written = 0
        self._begin_block(first)

    def _begin_block(self, begin: int) -> None:
        self._block = range(begin, min(begin + self._schedule.block, len(self.tokens)))
        self._steps_left = self._schedule.steps_of(len(self._block))

    @property
    def counts(self) -> Counts:
        return Counts(len(self._request.prompt), self._num_written, self._request.dropped_tokens)

    @property
    def can_take_over(self) -> bool:
        return False

    @property
    def is_open(self) -> bool:
        return True

    def outputs(self, begin: int, count: int) -> range:
        shift = int(self._denoising.is_shifted)
        return range(self._block.start - shift, self._block.stop - shift)

    def take(self, rows: OutputRows, top_logits: F32) -> int:
        """Replace masks of the block by tokens. All cells are computed again in the next step."""
        if not self._prefilled:
            self._prefilled = perf_counter()
        try:
            self._denoise(rows.fetch())
        except ChaskiError as error:
            self._stop(error)
        return len(self.slot.tokens)

    def _denoise(self, logits: F32) -> None:
        """Fill in the most probable of the tokens that the masks of the block get."""
        mask = self._denoising.mask
        found: list[tuple[float, int, int]] = []
        for place, row in zip(self._block, logits, strict=True):
            if self.tokens[place] == mask:
                token = self._sampler.sample(row).token_id
                score = float(log_probabilities(row, np.array([token]))[0])
                found.append((-score, place, token))
        count = -(-len(found) // self._steps_left)
        for _, place, token in sorted(sorted(found)[:count], key=lambda each: each[1]):
            self.tokens[place] = token
            self._sampler.accept(token)
        self._steps_left -= 1
        if not self._steps_left:
            self._end_block()

    def _end_block(self) -> None:
        block = self._block
        for token in self.tokens[block.start : block.stop]:
            self._chosen.append(token)
            if token in self._request.end_ids:
                self._stop("stop")
                return
        if block.stop == len(self.tokens):
            self._stop("length")
        else:
            self._begin_block(block.stop)

    def write(self) -> None:
        chosen, self._chosen = self._chosen, []
        for token in chosen:
            self._num_written += 1
            self._write(Sampled(token))
            if self._pieces.stop_string is not None:
                break
        self._write_end(generated_tokens=self._num_written)

    def fail(self, error: ChaskiError) -> None:
        self._chosen = []
        super().fail(error)
