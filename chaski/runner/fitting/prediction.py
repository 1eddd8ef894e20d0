"""Predicted rates of a model on the devices of a machine, from what each device reads and multiplies.

Devices compute their layers one after the other, so the seconds of a batch add up. Only where a GPU has slots
for some experts of a layer, both devices compute experts at the same time, and the longer time counts. A
matrix takes as long as reading it or multiplying with it, whichever is longer. Attention takes as long as
reading keys and values for one token, and as its multiply-adds for many. Weights that no memory holds are
read from their file for each batch, while others are computed; of experts only those that tokens choose,
while nothing else is computed. Chosen experts are assumed to be in memory as often as any others. Slots of a
GPU have the experts that tokens choose most: `_POPULARITY` is the assumed share of choices that find their
expert there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from msgspec import Struct

from chaski.ml.backend import HOST
from chaski.ml.rates import DeviceRates, ProductRates
from chaski.runner.fitting.layout import Layout
from chaski.runner.fitting.work import ContextWork, Matrix, Work

__all__ = ["BATCH", "BETWEEN", "FITTED_HISTORY", "FileTier", "Prediction", "Rates", "predict"]

BATCH = 512
"""Tokens of a prompt that are computed at once."""

BETWEEN = 5e-4
"""Seconds of the caller between two batches."""

FITTED_HISTORY = 512
"""Tokens before the tokens whose rate is predicted."""

# Operations of a layer between which a device waits, with experts and without, and those outside of layers.
_STEPS, _STEPS_OF_EXPERTS, _STEPS_OUTSIDE = 11, 15, 6
# Bytes that all operations between products read and write for each element of a token's row in a layer.
_PASSED_BYTES = 60
# Attention of single tokens multiplies at this share of its rate in a prompt, where queries share keys.
_SINGLE = 0.5
# Rows that go from one device to another and back take so long to begin.
_TRANSFER = 3e-5
# The most chosen share s of a layer's experts gets the share s ** _POPULARITY of choices: 31 % for a seventh.
# Two engines report that such slots make a mixture 1.21 and 1.31 times as fast. Not measured with chaski.
_POPULARITY = 0.6


class FileTier(Struct, frozen=True):
    """Weights that are read from their file.

    share  share of the weights of the processor that no memory holds
    rate   bytes that the disk gives per second
    is_of_experts  the share is that of experts, and memory holds all other weights
    """

    share: float
    rate: float
    is_of_experts: bool = False


class Rates(Struct, frozen=True):
    """Rates of a machine.

    devices  rates of each device
    file     the tier of weights in their file; None if memory holds all
    link     bytes per second from one device to another
    """

    devices: Mapping[str, DeviceRates]
    file: FileTier | None = None
    link: float = 6e9


class Prediction(Struct, frozen=True):
    """Predicted tokens per second.

    prefill   of a prompt of `FITTED_HISTORY` tokens
    decode    of all sequences together, after a history of as many tokens each
    seconds   of a step of decoding on each device, and `file` for reading weights
    """

    prefill: float
    decode: float
    seconds: Mapping[str, float]

    @property
    def turn(self) -> float:
        """Seconds of a usual turn of a conversation: 1,024 tokens are read, and 256 are written."""
        return 1024 / self.prefill + 256 / self.decode

    def decode_with(self, share: float) -> float:
        """Return the rate of decoding one sequence with `share` times as many bytes of weights."""
        between = self.seconds["between"]
        return 1 / (between + share * (sum(self.seconds.values()) - between))

    @classmethod
    def of(
        cls, work: Work, layout: Layout, rates: Rates, sequences: int = 1, history: int = FITTED_HISTORY
    ) -> Self:
        """Predict both rates for `sequences` sequences after `history` tokens."""
        prompt = predict(work, layout, rates, BATCH, 1, history / 2)
        step = predict(work, layout, rates, sequences, sequences, history)
        return cls(BATCH / sum(prompt.values()), sequences / sum(step.values()), step)


def predict(
    work: Work, layout: Layout, rates: Rates, tokens: int, outputs: int, history: float
) -> dict[str, float]:
    """Return the seconds of a batch on each device, of reading files, and of what lies between batches.

    tokens    in the batch, of as many sequences in decoding
    outputs   rows of logits
    history   tokens that a token sees on average
    """
    seconds = dict.fromkeys({*layout.weights.values(), *layout.contexts}, 0.0)
    from_file = 0.0
    for matrix in work.matrices:
        device = layout.weights[matrix.name]
        rows = outputs if _is_output(matrix) else tokens
        read = work.bytes_read(matrix, tokens)
        hot = layout.slots.get(matrix.name)
        share = 0.0 if hot is None else hot.share**_POPULARITY
        own = (1 - share) * _product_seconds(work, matrix, rates.devices[device], rows, read)
        seconds[device] += own
        if hot is not None:
            beside = share * _product_seconds(work, matrix, rates.devices[hot.device], rows, read)
            seconds[hot.device] += max(0.0, beside - own)
            read *= 1 - share
        tier = rates.file if device == HOST else None
        if tier is not None and (matrix.is_expert or not tier.is_of_experts):
            from_file += tier.share * read
    for context, device in zip(work.contexts, layout.contexts, strict=True):
        seconds[device] += _context_seconds(context, rates.devices[device], tokens, history)
    for device, steps in _steps(work, layout).items():
        own = rates.devices[device]
        passed = work.hidden * _PASSED_BYTES * tokens * steps / _STEPS
        seconds[device] += steps * own.step + passed / own.cells
    if rates.file is not None:
        reading = from_file / rates.file.rate
        seconds["file"] = reading if rates.file.is_of_experts else max(0.0, reading - seconds.get(HOST, 0.0))
    moves = _moves(work, layout)
    between = BETWEEN + moves * (_TRANSFER + 4 * work.hidden * tokens / rates.link)
    hot_layers = len({matrix.layer for matrix in work.matrices if matrix.name in layout.slots})
    between += hot_layers * (_TRANSFER + 4 * work.hidden * work.used * tokens / rates.link)
    return {**seconds, "between": between}


def _product_seconds(work: Work, matrix: Matrix, rates: DeviceRates, rows: int, read: float) -> float:
    by_type = rates.by_type.get(matrix.type) or _slowest(rates)
    return max(read / by_type.reading, work.products(matrix, rows) / by_type.products)


def _context_seconds(context: ContextWork, rates: DeviceRates, tokens: int, history: float) -> float:
    if context.is_state:
        return tokens * context.num_bytes * 2 / rates.cells
    seen = tokens * context.seen(history)
    # Queries of a prompt share the keys that they read, and a batch of several sequences shares none.
    shared, share = (BATCH, 1.0) if tokens >= BATCH else (1, _SINGLE)
    return seen * max(context.num_bytes / rates.cells / shared, context.products / rates.scores / share)


def _slowest(rates: DeviceRates) -> ProductRates:
    return min(rates.by_type.values(), key=lambda each: each.reading)


def _is_output(matrix: Matrix) -> bool:
    """Return whether a matrix computes logits, of which a prompt needs one row only."""
    return matrix.name.startswith(("output.", "token_embd."))


def _steps(work: Work, layout: Layout) -> dict[str, int]:
    """Return the number of operations on each device between which it waits."""
    devices: dict[tuple[int | None, str], bool] = {}
    for matrix in work.matrices:
        key = matrix.layer, layout.weights[matrix.name]
        devices[key] = devices.get(key, False) or matrix.is_expert
    found: dict[str, int] = {}
    for (layer, device), has_experts in devices.items():
        steps = _STEPS_OUTSIDE if layer is None else _STEPS_OF_EXPERTS if has_experts else _STEPS
        found[device] = found.get(device, 0) + steps
    return found


def _moves(work: Work, layout: Layout) -> int:
    """Return how many times rows go from one device to another in a batch."""
    moves, previous = 0, None
    for layer in range(work.layers):
        own = [layout.weights[m.name] for m in work.matrices if m.layer == layer]
        main = max(set(own), key=own.count) if own else previous
        moves += previous is not None and main != previous
        moves += 2 * (len(set(own)) - 1 if own else 0)
        previous = main
    return moves
