"""`Fit`: where a model's parts would be on this machine, and how fast it would be, before anything is loaded.

Memory comes from the estimate of loading, which compiles the model's plans and reads only the header of its
file. Rates come from the measured rates of the processor's kernels and from figures of GPUs.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import numpy as np
from msgspec import Struct

from chaski.env import Environment
from chaski.errors import ChaskiError, OutOfMemoryError
from chaski.formats.quant import QuantType
from chaski.ml import processor_rates, usual_gpus
from chaski.ml.backend import HOST
from chaski.ml.machine import physical_cores
from chaski.ml.rates import DeviceRates
from chaski.runner.fitting.gpu_rates import gpu_rates, is_known
from chaski.runner.fitting.layout import Layout
from chaski.runner.fitting.prediction import FileTier, Prediction, Rates
from chaski.runner.fitting.work import Work
from chaski.runner.loading.estimate import Estimate
from chaski.runner.loading.files import OpenedModel

__all__ = ["Alternative", "Fit", "MeasureRates", "alternatives", "check", "disk_rate", "measured_rates"]

MeasureRates = Callable[[Work, Sequence[str]], Mapping[str, DeviceRates]]
"""Returns the rates of devices for a model's types of weights."""

_BLOCK, _BLOCKS = 2 << 20, 48
_USUAL_DISK = 5e8
_FASTER, _LONGER = 1.1, 1.9
_SHORTEST = 2048
_LEAST = 64


class Fit(Struct, frozen=True):
    """A model on this machine, at one size.

    estimate    its memory on each device
    kv_type     type of keys and values, as it was asked for
    layout      devices of its parts; None where devices share every matrix
    prediction  its rates; None without a layout
    assumed     the names of GPUs whose figures are not known: their rates are those of a small card
    """

    estimate: Estimate
    kv_type: str | None
    layout: Layout | None
    prediction: Prediction | None
    assumed: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        model: OpenedModel,
        context: int | None = None,
        parallel: int | None = None,
        kv_type: str | None = None,
        *,
        claimed: int = 0,
        rates: MeasureRates | None = None,
    ) -> Self:
        """Plan a model; None leaves a choice to the defaults of loading.

        claimed: bytes of the host that count as unavailable
        rates: measures the rates of devices; None for `measured_rates`

        Raises what `Estimate.of` raises.
        """
        estimate = Estimate.of(model, context, parallel, claimed=claimed, kv_type=kv_type)
        needs, work = estimate.needs, estimate.work
        layout = Layout.of(work, model.file, estimate.place, needs.available)
        if layout is None:
            return cls(estimate, kv_type, layout, None)
        devices = sorted({*layout.weights.values(), *layout.contexts})
        found = (rates or measured_rates)(work, devices)
        prediction = Prediction.of(
            work, layout, Rates(found, _file_tier(estimate, layout, model.file.path)), estimate.size.sequences
        )
        models = {device.name: device.model for device in usual_gpus()}
        assumed = [models.get(name, name) for name in devices if name != HOST]
        assumed = [model for model in dict.fromkeys(assumed) if not is_known(model)]
        return cls(estimate, kv_type, layout, prediction, assumed)


class Alternative(Struct, frozen=True):
    """Another size of a model, and in words what it changes and gains."""

    change: str
    gain: str
    fit: Fit
    worth: float


def measured_rates(work: Work, devices: Sequence[str]) -> Mapping[str, DeviceRates]:
    """Return the rates of devices. Those of the processor are measured where they are not known yet."""
    models = {device.name: device.model for device in usual_gpus()}
    found: dict[str, DeviceRates] = {}
    for name in devices:
        if name == HOST:
            environment = Environment.read()
            threads = environment.threads or physical_cores()
            found[name] = processor_rates(_bytes_by_type(work), threads, environment.isa)
        else:
            found[name] = gpu_rates(models.get(name, ""))
    return found


def alternatives(
    model: OpenedModel, fit: Fit, rates: MeasureRates | None = None, most: int = 2
) -> list[Alternative]:
    """Return the best other sizes that fit: shorter and faster, longer, or of more sequences."""
    found = []
    for change, size, sequences, kv_type in _candidates(fit):
        with suppress(ChaskiError):
            other = Fit.of(model, size, sequences, kv_type, rates=rates)
            if other.estimate.fits() and (better := _compared(fit, other, change)) is not None:
                found.append(better)
    found.sort(key=lambda each: -each.worth)
    kept: list[Alternative] = []
    for each in found:
        if all(each.gain != other.gain and each.change[:7] != other.change[:7] for other in kept):
            kept.append(each)
    return kept[:most]


def _what_helps(model: OpenedModel, fit: Fit, parallel: int | None) -> str:
    """Return in words what to change so that a model fits that does not."""
    size = fit.estimate.size
    context = size.capacity // 2
    while context >= _LEAST:
        if Estimate.of(model, context, parallel).fits():
            return f"--context {context} fits"
        context //= 2
    if size.sequences > 1 and Estimate.of(model, min(size.capacity, _SHORTEST), 1).fits():
        return f"--parallel 1 --context {min(size.capacity, _SHORTEST)} fits"
    needs = fit.estimate.needs
    short = needs.missing[0]
    weights = sum(needs.weights.values())
    lacking = needs.total[short] - needs.available[short]
    share = max(0.0, 1 - lacking / max(weights, 1))
    return (
        f"no context fits; a quantization of at most {share:.0%} of the size of this one would, or another "
        f"{lacking / 1e9:.2f} GB of free memory on {short}"
    )


def check(model: OpenedModel, fit: Fit, parallel: int | None) -> None:
    """Raise OutOfMemoryError, with what to change, where a model does not fit."""
    if fit.estimate.fits():
        return
    try:
        fit.estimate.needs.check()
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{error}\n  What helps: {_what_helps(model, fit, parallel)}.") from None


def _candidates(fit: Fit) -> Iterator[tuple[str, int, int, str | None]]:
    """Yield other sizes, each with the change in words."""
    size, longest = fit.estimate.size, fit.estimate.trained
    context, sequences = size.capacity, size.sequences
    for factor in (2, 4):
        if context // factor >= _SHORTEST:
            yield (
                f"context {context // factor:,} instead of {context:,}",
                context // factor,
                sequences,
                fit.kv_type,
            )
        if context < longest:
            longer = min(context * factor, longest)
            yield f"context {longer:,} instead of {context:,}", longer, sequences, fit.kv_type
    if fit.kv_type is None:
        longer = min(2 * context, longest)
        for kv_type in ("q8_0", "q4_0"):
            yield f"keys and values in {kv_type}, context {longer:,}", longer, sequences, kv_type
    if sequences == 1:
        yield "4 sequences instead of one", context, 4, fit.kv_type


def _compared(fit: Fit, other: Fit, change: str) -> Alternative | None:
    """Return what another size gains; None for nothing worth a line."""
    if fit.prediction is None or other.prediction is None:
        return None
    speed = fit.prediction.turn / other.prediction.turn
    size, changed = fit.estimate.size, other.estimate.size
    if changed.sequences > size.sequences:
        together = other.prediction.decode / fit.prediction.decode
        gain = f"{together:.1f} times as many tokens per second in all"
        return Alternative(change, gain, other, math.log2(together)) if together >= _FASTER else None
    longer = changed.capacity / size.capacity
    if speed >= _FASTER:
        return Alternative(
            change, f"{speed:.1f} times as fast", other, 2 * math.log2(speed) + math.log2(longer) / 4
        )
    if longer >= _LONGER:
        gain = f"{longer:.0f} times as long" + (f", {speed:.0%} as fast" if speed < 0.97 else "")
        return Alternative(change, gain, other, math.log2(longer) * speed / 2)
    saved = 1 - sum(other.estimate.needs.total.values()) / sum(fit.estimate.needs.total.values())
    if saved >= 0.05 and longer >= 1:
        return Alternative(change, f"{saved:.0%} less memory", other, saved)
    return None


def _bytes_by_type(work: Work) -> dict[QuantType, int]:
    found: dict[QuantType, int] = {}
    for matrix in work.matrices:
        if matrix.is_used:
            type = QuantType[matrix.type]
            found[type] = found.get(type, 0) + matrix.num_bytes
    return found


def _file_tier(estimate: Estimate, layout: Layout, path: Path) -> FileTier | None:
    """Return the tier of weights that no memory holds."""
    needs = estimate.needs
    in_files = needs.in_files.get(HOST, 0)
    if not in_files:
        return None
    own = [each for each in estimate.work.matrices if layout.weights[each.name] == HOST]
    experts = sum(each.num_bytes for each in own if each.is_expert)
    if in_files < experts:  # or else any matrix may be in the file, and tables come into memory last
        return FileTier(in_files / experts, disk_rate(path), is_of_experts=True)
    tables = sum(each.num_bytes for each in own if not each.is_used)
    used = sum(each.num_bytes for each in own) - tables
    return FileTier(max(0, in_files - tables) / used, disk_rate(path))


def disk_rate(path: Path) -> float:
    """Measure the bytes per second that the disk gives of a file, without what memory keeps of it."""
    flags = os.O_RDONLY | getattr(os, "O_DIRECT", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return _USUAL_DISK
    area = np.empty(3 * _BLOCK, np.uint8)  # NumPy asks for huge pages, as those of a stream of weights are
    aligned = -area.ctypes.data % _BLOCK
    room = area[aligned : aligned + _BLOCK].data
    try:
        step = max(_BLOCK, os.fstat(descriptor).st_size // _BLOCKS // _BLOCK * _BLOCK)
        began, read = time.perf_counter(), 0
        for index in range(_BLOCKS):
            read += os.preadv(descriptor, [room], index * step)
        return max(read, 1) / (time.perf_counter() - began)
    except OSError:
        return _USUAL_DISK
    finally:
        os.close(descriptor)
