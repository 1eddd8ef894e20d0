"""`Advice`: for each file of a model, whether it fits here, how fast it decodes, and what it loses.

Memory and rate are those of `chaski fit`. `recommended` chooses among the files that fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from chaski.errors import ChaskiError
from chaski.formats.file_types import file_type
from chaski.formats.gguf import GGUFFile
from chaski.runner.choosing.candidates import Candidate
from chaski.runner.choosing.fitting import Fit, MeasureRates
from chaski.runner.choosing.losses import Loss, loss_of_type, measured_loss
from chaski.runner.evaluation.records import Subject
from chaski.runner.loading.files import OpenedModel
from chaski.store.model import StoredModel

__all__ = ["ENOUGH", "EQUAL", "READING_SPEED", "Advice", "advise", "recommended"]

READING_SPEED = 8.0
"""Tokens per second that people read; a file below it is recommended only if no other one fits."""

EQUAL = 0.01
"""Mean KL divergence in nats below which losses are too small to matter."""

ENOUGH = 8192
"""Tokens of context that a recommended file should have, unless the user or the model sets less."""


class Advice(Struct, frozen=True):
    """A candidate on this machine.

    context   tokens of context that fit, or that were asked for
    needed    bytes for weights, cache and plans with that context; `available` are those that are free
    rate      predicted tokens per second of decoding; None where several GPUs share every matrix
    loss      None if it is unknown
    problem   why the native engine cannot run it; "" if it can
    """

    candidate: Candidate
    type: str
    context: int = 0
    needed: int = 0
    available: int = 0
    fits: bool = False
    rate: float | None = None
    loss: Loss | None = None
    problem: str = ""


def advise(
    candidates: Iterable[Candidate], context: int | None, rates: MeasureRates | None = None
) -> list[Advice]:
    """Return the advice about each candidate.

    context  tokens of context; None for as many as fit
    rates    measures the rates of devices; None for the usual way
    """
    return [_advice(each, context, rates) for each in candidates]


def recommended(found: Sequence[Advice], context: int | None) -> Advice | None:
    """Return the best file that fits, or None if none does.

    Among files with enough context that decode at least at reading speed, it is the one that loses least.
    Losses below `EQUAL` count as equal, and the faster file wins. If none is that fast, all that fit count.
    """
    fitting = [each for each in found if each.fits]
    roomy = [each for each in fitting if each.context >= (context or ENOUGH)] or fitting
    fast = [each for each in roomy if each.rate is None or each.rate >= READING_SPEED] or roomy
    return min(fast, key=_worse, default=None)


def _worse(found: Advice) -> tuple[bool, float, int]:
    loss = None if found.loss is None else max(found.loss.divergence, EQUAL)
    return loss is None, loss or 0.0, found.candidate.num_bytes


def _advice(candidate: Candidate, context: int | None, rates: MeasureRates | None) -> Advice:
    try:
        opened = OpenedModel.of(StoredModel(None, candidate.path))
    except ChaskiError as error:
        return Advice(candidate, candidate.type, problem=str(error))
    type = candidate.type or (file_type(opened.file) if candidate.is_here else "")
    loss = _loss(candidate, type, opened.file)
    try:
        fit = Fit.of(opened, context, 1, claimed=candidate.beyond, rates=rates)
    except ChaskiError as error:
        return Advice(candidate, type, loss=loss, problem=str(error))
    estimate = fit.estimate
    needs = estimate.needs
    share = candidate.num_bytes / (candidate.num_bytes - candidate.beyond)
    return Advice(
        candidate,
        type,
        estimate.size.capacity,
        sum(needs.total.values()) + candidate.beyond,
        sum(needs.available.values()) + candidate.beyond,
        estimate.fits(),
        None if fit.prediction is None else fit.prediction.decode_with(share),
        loss,
    )


def _loss(candidate: Candidate, type: str, file: GGUFFile) -> Loss | None:
    if candidate.is_here:
        measured = measured_loss(Subject.of(candidate.name, file))
        if measured is not None:
            return measured
    by_importance = any(key.startswith("quantize.imatrix.") for key in file.metadata)
    return loss_of_type(type, by_importance)
