"""`chaski bench`: how fast a model computes here, without any text.

Every repeat reads `depth` tokens untimed, then times a prompt after them, then times greedy decoding after
the prompt. With a batch, all sequences do so together, and rates count the tokens of all.
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
from typing import TYPE_CHECKING, TypeAlias

import click
from msgspec import Struct, to_builtins

from chaski.cli.charts import Bar, Chart, PlotCommand, check_plot, plot_option, show
from chaski.cli.completion import model_names
from chaski.cli.devices import device_options
from chaski.cli.layout import section, size_in_bytes

if TYPE_CHECKING:
    from chaski.runner.llm import LLM

__all__ = ["BenchResult", "Workload", "command", "compute", "measure", "seconds_since_process_start"]


class Workload(Struct, frozen=True):
    """Tokens of a sequence by what is done with them, and how many sequences there are."""

    prompt: int
    generate: int
    depth: int
    batch: int

    @property
    def context(self) -> int:
        """Tokens of a sequence: decoding begins with one behind the prompt."""
        return self.depth + self.prompt + 1 + self.generate


class BenchResult(Struct, frozen=True):
    """Rates are lists over the repeats, each in tokens of all sequences."""

    prefill_tokens_per_second: list[float]
    decode_tokens_per_second: list[float]
    load_seconds: float
    first_logits_seconds: float
    peak_rss_bytes: int


Results: TypeAlias = Sequence[tuple[Workload, BenchResult]]


def _numbers(ctx: click.Context, param: click.Parameter, text: str) -> list[int]:
    """Read one whole number, or several with commas between them, each once; sequences begin at 1."""
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
    help="Tokens before the prompt; several numbers, as 0,1024,4096, are measured one by one.",
)
@click.option(
    "--batch",
    "batches",
    callback=_numbers,
    metavar="N[,N...]",
    default="1",
    show_default=True,
    help="Sequences at a time, or several numbers.",
)
@click.option("--repeat", type=click.IntRange(1), default=3, show_default=True, help="How often to measure.")
@click.option("--threads", type=int, help="Cores to compute on.  [default: all physical ones]")
@device_options
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object; for several depths or batches, a list."
)
@plot_option("Draw the rates by depth, batch or repeat, here or as a file.")
@click.option("--plan", "with_plan", is_flag=True, help="Show where time goes, and what more threads give.")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="With --plan: draw it as SVG.",
)
@click.option(
    "--bandwidth",
    type=click.FloatRange(0, min_open=True),
    metavar="GB/S",
    help="With --plan: what a memory node of a larger machine gives.",
)
@click.option("--nodes", type=click.IntRange(1), metavar="N", help="With --bandwidth: its memory nodes.")
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
    num_gpu: int | None,
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
        raise click.UsageError("--plan is for one depth and one batch, and draws with --picture")
    _check_plan_options(with_plan, workload, backend, picture, bandwidth, nodes)
    check_plot(plot)
    if with_plan:
        click.echo(_plan(model, workload, repeat, threads, as_json, picture, bandwidth, nodes), nl=False)
        return
    context = max(each.context for each in workloads)
    with load_with_bar(
        model, threads=threads, context=context, parallel=max(batches), backend=backend, num_gpu=num_gpu
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
    """Raise UsageError where they do not go together, before anything is measured."""
    if not with_plan:
        for name, value in (("picture", picture), ("bandwidth", bandwidth), ("nodes", nodes)):
            if value is not None:
                raise click.UsageError(f"--{name} goes with --plan")
    elif backend not in (None, "cpu"):
        raise click.UsageError("--plan is for the backend cpu")
    elif workload.generate < 2:
        raise click.UsageError("--plan needs two tokens to decode: --generate 2")
    elif nodes is not None and bandwidth is None:
        raise click.UsageError("--nodes goes with --bandwidth")
    elif picture is not None and not picture.parent.is_dir():
        raise click.UsageError(f"--picture: there is no folder {picture.parent}")


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
    """Measure the plan and draw it -> what is printed."""
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
        picture.write_text(draw(report), encoding="utf-8")
    return json.dumps(as_object(report)) + "\n" if as_json else tables(report)


def measure(model: LLM, workload: Workload, seeds: Sequence[int], first_logits_seconds: float) -> BenchResult:
    """Measure once for each seed of the random tokens, when all weights are laid out."""
    model.wait_loaded()
    rates = [_rates_of(model, workload, seed) for seed in seeds]
    prefill, decode = (list(column) for column in zip(*rates, strict=True))
    return BenchResult(prefill, decode, model.load_seconds, first_logits_seconds, _peak_bytes())


def compute(model: LLM, workload: Workload, repeat: int) -> None:
    """Do what `measure` times."""
    for seed in range(repeat):
        _rates_of(model, workload, seed)


def _rates_of(model: LLM, workload: Workload, seed: int) -> tuple[float, float]:
    """Prefill and decode rates, in tokens per second.

    What one stage computed the next one finds in the prefix cache. So each stage does nothing but its own
    work: decoding begins with a token behind the prompt, in all sequences at once. The prompt's last token
    would not do, as recurrent layers may have no state in front of it. Nothing comes from earlier runs or
    goes to later ones: the prompts have a salt of their own, and are not kept on disk.
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
    """Run all prompts together, greedily -> seconds until all have their last token.

    What is left to do then, such as keeping their prefixes, is not part of it.
    """
    from chaski.errors import ChaskiError
    from chaski.runner.generation.generation import Generation
    from chaski.runner.generation.request import GenerationRequest
    from chaski.sample import SamplingOptions

    ends: list[float] = []

    class Timed(Generation):
        def write(self) -> None:
            super().write()
            if self.events:  # nothing but its end, as it has no text
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
    """Age of this process, to the clock tick (10 ms); -1 where the system does not tell.

    Field 22 of Linux's stat line counts ticks from boot; the second field may hold anything in parentheses.
    """
    stat = Path("/proc/self/stat")
    if not stat.exists():
        return -1.0
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _peak_bytes() -> int:
    """The most memory that this process had resident."""
    status = Path("/proc/self/status")
    if status.exists():
        # Unlike getrusage, this does not count what the parent process had before it started this one.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _json(results: Results) -> str:
    """One result alone, or a list of all, each with its depth and batch."""
    if len(results) == 1:
        return json.dumps(to_builtins(results[0][1]))
    return json.dumps(
        [{"depth": each.depth, "batch": each.batch, **to_builtins(result)} for each, result in results]
    )


def _charts(results: Results) -> list[Chart]:
    """Return charts of prefill and decode: a bar for each workload, or for each repeat of a single one."""
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
        best = "; the best, and marks for all" if len(rates) > 1 else ""
        charts.append(Chart(f"{stage}, {tokens} of each sequence: tokens/s{best}", bars))
    return charts


def _label(workload: Workload, results: Results) -> str:
    """Say what differs between the workloads."""
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
