"""`chaski bench`: measures how fast a model computes on this machine, using random tokens.

Each repeat reads `depth` tokens without timing them, then times a prompt, then times greedy decoding. All
sequences of a batch run together, and the rates count the tokens of all of them.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import click
from msgspec import Struct, to_builtins

from chaski.cli.charts import Bar, Chart, PlotCommand, check_plot, plot_option, show
from chaski.cli.completion import model_names
from chaski.cli.devices import device_options
from chaski.cli.layout import section, size_in_bytes
from chaski.cli.picture import check_picture

if TYPE_CHECKING:
    from chaski.runner.llm import LLM

__all__ = ["BenchResult", "Workload", "command", "compute", "measure", "seconds_since_process_start"]


class Workload(Struct, frozen=True):
    """Number of tokens per sequence for each stage, and number of sequences."""

    prompt: int
    generate: int
    depth: int
    batch: int

    @property
    def context(self) -> int:
        """Total tokens per sequence. Decoding starts with one extra token after the prompt."""
        return self.depth + self.prompt + 1 + self.generate


class BenchResult(Struct, frozen=True):
    """Rates are lists with one value per repeat, in tokens per second of all sequences together."""

    prefill_tokens_per_second: list[float]
    decode_tokens_per_second: list[float]
    load_seconds: float
    first_logits_seconds: float
    peak_rss_bytes: int


Results: TypeAlias = Sequence[tuple[Workload, BenchResult]]


def _numbers(ctx: click.Context, param: click.Parameter, text: str) -> list[int]:
    """Parse one or several distinct integers, separated by commas. The number of sequences is at least 1."""
    number = click.IntRange(1 if param.name == "batches" else 0)
    return list(dict.fromkeys(number(word, param, ctx) for word in text.split(",")))


@click.command("bench", cls=PlotCommand, short_help="Measure how fast a model computes.")
@click.argument("model", shell_complete=model_names)
@click.option(
    "--prompt", type=click.IntRange(1), default=512, show_default=True, help="Tokens of the prompt."
)
@click.option("--generate", type=click.IntRange(1), default=64, show_default=True, help="Tokens to decode.")
@click.option(
    "--depth",
    "depths",
    callback=_numbers,
    metavar="N[,N...]",
    default="0",
    show_default=True,
    help="Tokens before the prompt. Several numbers, such as 0,1024,4096, are measured one by one.",
)
@click.option(
    "--batch",
    "batches",
    callback=_numbers,
    metavar="N[,N...]",
    default="1",
    show_default=True,
    help="Sequences computed together, or several such numbers.",
)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="Times to measure.")
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Cores to compute on.  [default: physical cores]"
)
@device_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object, or a list for several depths or batches."
)
@plot_option("Draw the rates by depth, batch or repeat, in the terminal or to a file.")
@click.option("--plan", "with_plan", is_flag=True, help="Show where time goes, and predict more threads.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="With --plan: also draw it to an SVG or PNG file.",
)
@click.option(
    "--bandwidth",
    type=click.FloatRange(0, min_open=True),
    metavar="GB/S",
    help="With --plan: bandwidth of one memory node of a larger machine.",
)
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="With --bandwidth: its number of nodes.")
@click.help_option("-h", "--help")
def command(
    model: str,
    prompt: int,
    generate: int,
    depths: list[int],
    batches: list[int],
    repeat: int,
    threads: int | None,
    backend: str | None,
    placing: dict[str, Any],
    as_json: bool,
    plot: str | None,
    with_plan: bool,
    picture: Path | None,
    bandwidth: float | None,
    nodes: int | None,
) -> None:
    """Measure MODEL, a name or a path to a GGUF file, on random tokens."""
    from chaski.cli.progress import load_with_bar

    workloads = [Workload(prompt, generate, depth, batch) for batch in batches for depth in depths]
    workload = workloads[0]
    if with_plan and (plot is not None or len(workloads) > 1):
        raise click.UsageError("--plan takes one depth and one batch, and draws with --picture, not --plot")
    _check_plan_options(with_plan, workload, backend, picture, bandwidth, nodes)
    check_plot(plot)
    if with_plan:
        click.echo(_plan(model, workload, repeat, threads, as_json, picture, bandwidth, nodes), nl=False)
        return
    context = max(each.context for each in workloads)
    with load_with_bar(
        model, threads=threads, context=context, parallel=max(batches), backend=backend, **placing
    ) as loaded:
        loaded.logits([0])
        first_logits = seconds_since_process_start()
        results = [(each, measure(loaded, each, range(repeat), first_logits)) for each in workloads]
    click.echo(_json(results) if as_json else "\n".join(_table(result, each) for each, result in results))
    if plot is not None:
        show(_charts(results), plot)


def _check_plan_options(
    with_plan: bool,
    workload: Workload,
    backend: str | None,
    picture: Path | None,
    bandwidth: float | None,
    nodes: int | None,
) -> None:
    """Raise UsageError for options that exclude each other, before anything is measured."""
    if not with_plan:
        for name, value in (("picture", picture), ("bandwidth", bandwidth), ("nodes", nodes)):
            if value is not None:
                raise click.UsageError(f"--{name} needs --plan")
    elif backend not in (None, "cpu"):
        raise click.UsageError("--plan works with --backend cpu only")
    elif workload.generate < 2:
        raise click.UsageError("--plan needs two tokens to decode: --generate 2")
    elif nodes is not None and bandwidth is None:
        raise click.UsageError("--nodes needs --bandwidth")
    elif picture is not None:
        check_picture("--picture", picture)


def _plan(
    model: str,
    workload: Workload,
    repeat: int,
    threads: int | None,
    as_json: bool,
    picture: Path | None,
    bandwidth: float | None,
    nodes: int | None,
) -> str:
    """Measure the plan, draw its picture if one is requested, and return the text to print."""
    from chaski.cli.bench_plan import as_json as as_object
    from chaski.cli.bench_plan import tables, traces_of
    from chaski.cli.plan_picture import draw
    from chaski.env import Environment
    from chaski.ml.machine import physical_cores
    from chaski.ml.performance_model import Memory
    from chaski.runner.loading.sizes import thread_count
    from chaski.runner.plan_report import measure_plan, thread_counts

    memory = Memory(None if bandwidth is None else bandwidth * 1e9, nodes or 1)
    traces = traces_of(
        model,
        workload.context,
        workload.batch,
        lambda loaded: compute(loaded, workload, repeat),
    )
    environment = Environment.read()
    counts = thread_counts(thread_count(threads, environment.threads) or physical_cores())
    report = measure_plan(traces, counts, workload.batch, environment.isa, memory)
    if picture is not None:
        draw(report).write(picture)
    return json.dumps(as_object(report)) + "\n" if as_json else tables(report)


def measure(model: LLM, workload: Workload, seeds: Sequence[int], first_logits_seconds: float) -> BenchResult:
    """Wait until all weights are loaded, then measure once per seed of the random tokens."""
    model.wait_loaded()
    rates = [_rates_of(model, workload, seed) for seed in seeds]
    prefill, decode = (list(column) for column in zip(*rates, strict=True))
    return BenchResult(prefill, decode, model.load_seconds, first_logits_seconds, _peak_bytes())


def compute(model: LLM, workload: Workload, repeat: int) -> None:
    """Run the work that `measure` times."""
    for seed in range(repeat):
        _rates_of(model, workload, seed)


def _rates_of(model: LLM, workload: Workload, seed: int) -> tuple[float, float]:
    """Return the prefill and decode rates, in tokens per second.

    Each stage finds the tokens of the previous stage in the prefix cache, so it does only its own work.
    Decoding starts with one extra token after the prompt, in all sequences at once. It cannot start with the
    prompt's last token, because recurrent layers may have no state before that token. Runs do not share
    cached prefixes: each run has its own salt, and its prompts are not stored on disk.
    """
    import numpy as np

    before, length = workload.depth, workload.depth + workload.prompt
    shape = (workload.batch, length + 1)
    prompts = np.random.default_rng(seed).integers(0, model.vocab_size, shape).tolist()
    salt = secrets.token_hex(16)
    if before:
        _run(model, [prompt[:before] for prompt in prompts], 0, salt)
    prefill = _run(model, [prompt[:length] for prompt in prompts], 0, salt)
    decode = _run(model, prompts, workload.generate, salt)
    return workload.batch * workload.prompt / prefill, workload.batch * workload.generate / decode


def _run(model: LLM, prompts: Sequence[Sequence[int]], num_predict: int, salt: str) -> float:
    """Run all prompts together with greedy decoding; return the seconds until the last token of all.

    Later work, such as storing prefixes, is not timed.
    """
    from chaski.errors import ChaskiError
    from chaski.runner.generation.generation import Generation
    from chaski.runner.generation.request import GenerationRequest
    from chaski.sample import SamplingOptions

    ends: list[float] = []

    class Timed(Generation):
        def write(self) -> None:
            super().write()
            if self.events:  # only the end event, because there is no text
                ends.append(time.perf_counter())

    greedy = SamplingOptions(temperature=0)
    requests = [
        GenerationRequest(
            prompt=prompt,
            limit=len(prompt) + num_predict,
            sampling=greedy,
            cache_salt=salt,
            may_store=False,
        )
        for prompt in prompts
    ]
    running = [Timed(request) for request in requests]
    started = time.perf_counter()
    for one in running:
        model.engine.submit(one)
    for one in running:
        model.engine.wait(one)
        if isinstance(one.events[-1], ChaskiError):
            raise one.events[-1]
    return max(ends) - started


def seconds_since_process_start() -> float:
    """Return the age of this process in seconds, to the clock tick (10 ms), or -1 without /proc.

    Field 22 of Linux's stat line is the start time in ticks since boot. The second field, in parentheses, may
    contain any characters.
    """
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return -1.0
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _peak_bytes() -> int:
    """Return the peak resident memory of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Unlike getrusage, VmHWM excludes the memory of the parent process before the fork.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _json(results: Results) -> str:
    """Return one result as an object, or several as a list, each with its depth and batch."""
    if len(results) == 1:
        return json.dumps(to_builtins(results[0][1]))
    return json.dumps(
        [{"depth": each.depth, "batch": each.batch, **to_builtins(result)} for each, result in results]
    )


def _charts(results: Results) -> list[Chart]:
    """Return charts of prefill and decode, with a bar per workload, or per repeat of a single workload."""
    first = results[0][0]
    about = f"{first.prompt} tokens", f"{first.generate} tokens"
    stages = ("Prefill", "prefill_tokens_per_second"), ("Decode", "decode_tokens_per_second")
    charts = []
    for (stage, field), tokens in zip(stages, about, strict=True):
        rates = [(each, getattr(result, field)) for each, result in results]
        if len(rates) == 1:
            bars = [Bar(f"repeat {n}", (rate,), f"{rate:.1f}") for n, rate in enumerate(rates[0][1], 1)]
        else:
            bars = [
                Bar(_label(each, results), (max(found),), f"{max(found):.1f}", tuple(found))
                for each, found in rates
            ]
        best = "; bars show the best, marks show all" if len(rates) > 1 else ""
        charts.append(Chart(f"{stage}, {tokens} of each sequence: tokens/s{best}", bars))
    return charts


def _label(workload: Workload, results: Results) -> str:
    """Return a label of the fields that differ between the workloads."""
    parts = []
    if len({each.batch for each, _ in results}) > 1:
        parts.append(f"{workload.batch} sequences" if workload.batch > 1 else "1 sequence")
    if len({each.depth for each, _ in results}) > 1:
        parts.append(f"depth {workload.depth:,}")
    return ", ".join(parts)


def _table(result: BenchResult, workload: Workload) -> str:
    rows = [
        ("prefill", f"{workload.prompt} tokens", _rates(result.prefill_tokens_per_second)),
        ("decode", f"{workload.generate} tokens", _rates(result.decode_tokens_per_second)),
        ("load", "", f"{result.load_seconds:.2f} s"),
        ("first logits", "", f"{result.first_logits_seconds:.2f} s"),
        ("peak memory", "", size_in_bytes(result.peak_rss_bytes)),
    ]
    title = f"{workload.batch} sequence(s), {workload.depth} tokens before the prompt; best (all)"
    return section(title, rows)


def _rates(rates: Sequence[float]) -> str:
    every = ", ".join(f"{rate:.1f}" for rate in rates)
    return f"{max(rates):.1f} tokens/s ({every})"
