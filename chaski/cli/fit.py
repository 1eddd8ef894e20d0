"""`chaski fit`: where a model would be on this machine, and how fast it would be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.charts import Bar, Chart, show
from chaski.cli.completion import model_names
from chaski.cli.json_output import echo_json, json_option
from chaski.cli.layout import section, size_in_bytes

if TYPE_CHECKING:
    from chaski.runner.choosing.fitting import Alternative, Fit

__all__ = ["command"]

_COLUMNS = 79
_PARTS = ("weights", "cache", "working memory", "free")


@click.command("fit", short_help="Show where a model would be, and how fast.")
@click.argument("model", shell_complete=model_names)
@click.option(
    "--context",
    type=click.IntRange(1),
    metavar="N",
    help="Tokens of context.  [default: as many as memory allows]",
)
@click.option("--parallel", type=click.IntRange(1), metavar="N", help="Sequences computed together.")
@json_option("Print all figures as JSON.")
@click.help_option("-h", "--help")
def command(model: str, context: int | None, parallel: int | None, as_json: bool) -> None:
    """Plan MODEL, a name or a path to a GGUF file, on this machine; only its header is read.

    The rates are predictions from measured rates of the processor's kernels, and from figures of GPUs.
    `chaski bench` measures the actual rates.
    """
    from chaski.runner.choosing.fitting import Fit, alternatives, check
    from chaski.runner.loading.files import OpenedModel
    from chaski.store.model import find_model

    opened = OpenedModel.of(find_model(model))
    fit = Fit.of(opened, context, parallel)
    check(opened, fit, parallel)
    others = alternatives(opened, fit)
    if as_json:
        echo_json({**_as_object(fit), "alternatives": [_alternative(each) for each in others]})
        return
    click.echo(section("Plan", _rows(fit)))
    show([_chart(fit)], "-")
    if others:
        click.echo(section("Alternatives", ((each.change, each.gain) for each in others)))


def _rows(fit: Fit) -> Iterator[tuple[str, str]]:
    estimate = fit.estimate
    size, needs = estimate.size, estimate.needs
    many = f"{size.sequences} sequences of " if size.sequences > 1 else ""
    reason = f", {estimate.context_reason}" if estimate.context_reason else ""
    yield "context", f"{many}{size.capacity:,} tokens{reason}"
    if fit.layout is not None:
        for name in needs.total:
            if contents := fit.layout.contents(estimate.work, name):
                yield name, contents
    if in_files := sum(needs.in_files.values()):
        when = "experts that tokens choose are read" if estimate.work.experts else "every batch reads them"
        yield "file", f"{size_in_bytes(in_files)} of weights: {when} from the disk"
    if fit.prediction is None:
        yield "rates", "not predicted where GPUs share every matrix"
        return
    yield "prompt", f"{_rate(fit.prediction.prefill)} tokens/s, predicted for 512 tokens"
    yield "answer", f"{_rate(fit.prediction.decode)} tokens/s, predicted after 512 tokens"
    if fit.assumed:
        yield "assumed", f"the rates of {', '.join(fit.assumed)} are not known: those of a small card"


def _chart(fit: Fit) -> Chart:
    parts = _bytes(fit)
    bars = [
        Bar(name, each, f"{size_in_bytes(sum(each[:3]))} of {size_in_bytes(sum(each))}")
        for name, each in parts.items()
    ]
    return Chart("Memory", bars, _PARTS)


def _bytes(fit: Fit) -> dict[str, tuple[int, int, int, int]]:
    """Return the bytes of each device: weights, cache, everything else, and what stays free."""
    needs = fit.estimate.needs
    found = {}
    for name, total in needs.total.items():
        weights = needs.weights.get(name, 0) - needs.shared.get(name, 0)
        cache = sum(kind.num_bytes.get(name, 0) for kind in needs.caches)
        found[name] = weights, cache, total - weights - cache, max(0, needs.available[name] - total)
    return found


def _as_object(fit: Fit) -> dict[str, Any]:
    estimate = fit.estimate
    return {
        "context": estimate.size.capacity,
        "context_reason": estimate.context_reason,
        "parallel": estimate.size.sequences,
        "devices": {
            name: dict(zip(("weights", "caches", "working", "free"), parts, strict=True))
            | {"holds": "" if fit.layout is None else fit.layout.contents(estimate.work, name)}
            for name, parts in _bytes(fit).items()
        },
        "in_files": sum(estimate.needs.in_files.values()),
        "prefill_tokens_per_second": None if fit.prediction is None else fit.prediction.prefill,
        "decode_tokens_per_second": None if fit.prediction is None else fit.prediction.decode,
        "assumed_rates": list(fit.assumed),
        "seconds_of_a_step": None if fit.prediction is None else dict(fit.prediction.seconds),
    }


def _alternative(each: Alternative) -> dict[str, Any]:
    return {"change": each.change, "gain": each.gain, "kv_type": each.fit.kv_type, **_as_object(each.fit)}


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"
