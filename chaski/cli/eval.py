"""`chaski eval`: measures how well a model predicts a text, alone or against another file of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.charts import Bar, Chart, PlotCommand, check_plot, plot_option, show
from chaski.cli.completion import model_names
from chaski.cli.devices import device_options
from chaski.cli.json_output import echo_json, json_option
from chaski.cli.layout import section

if TYPE_CHECKING:
    from chaski.runner.evaluation.chunks import Chunks
    from chaski.runner.evaluation.records import Description, Records, Subject
    from chaski.runner.evaluation.scores import Scores
    from chaski.runner.evaluation.summary import Comparison, Estimate, Summary
    from chaski.runner.llm import LLM
    from chaski.runner.loading.files import OpenedModel

__all__ = ["command"]

_MOST_BARS = 24
_EXTREMES = {"100": "largest", "0": "smallest"}


@click.command("eval", cls=PlotCommand, short_help="Measure how well a model predicts a text.")
@click.argument("model", shell_complete=model_names)
@click.argument("text", type=click.Path(dir_okay=False, allow_dash=True))
@click.option(
    "--against",
    metavar="OTHER",
    shell_complete=model_names,
    help="A reference: a larger file of the same model, such as F16.",
)
@click.option(
    "--context", type=click.IntRange(8), default=512, show_default=True, help="Tokens of a chunk of the text."
)
@click.option(
    "--chunks", "most", type=click.IntRange(1), metavar="N", help="Chunks to measure.  [default: all]"
)
@click.option(
    "--threads", type=click.IntRange(1), metavar="N", help="Cores to compute on.  [default: physical cores]"
)
@device_options
@click.option("--restart", is_flag=True, help="Measure again instead of continuing from stored scores.")
@json_option("Print the results as JSON.")
@plot_option("Draw perplexity by chunk and divergence, in the terminal or to a file.")
@click.help_option("-h", "--help")
def command(
    model: str,
    text: str,
    against: str | None,
    context: int,
    most: int | None,
    threads: int | None,
    backend: str | None,
    placing: dict[str, Any],
    restart: bool,
    as_json: bool,
    plot: str | None,
) -> None:
    """Measure how well MODEL, a name or a GGUF file, predicts the text in the file TEXT ("-" for stdin).

    Perplexity is defined as in llama.cpp's llama-perplexity: the text is cut into chunks, the first half of
    each chunk is only context, and the rest is scored. A lower perplexity is better. With --against, the
    command also reports how far the predictions of MODEL are from those of OTHER: the Kullback-Leibler
    divergence, and how often both find the same token most likely.

    Scores are stored after each chunk. The same command continues an interrupted run.
    """
    from chaski.runner.evaluation.chunks import Chunks
    from chaski.runner.evaluation.evaluation import check_same_tokens
    from chaski.runner.evaluation.records import Subject, described
    from chaski.runner.evaluation.summary import Summary
    from chaski.text.tokenizer import file_tokenizer

    check_plot(plot)
    names = [model] if against is None else [model, against]
    opened = [_opened(name) for name in names]
    tokenizers = [file_tokenizer(each.file) for each in opened]
    written = _read(text)
    chunks = Chunks.of(written, tokenizers[0], context)
    for other in tokenizers[1:]:
        check_same_tokens(tokenizers[0], other, chunks, written)
    subjects = [Subject.of(name, each.file) for name, each in zip(names, opened, strict=True)]
    description = described(
        subjects[0], subjects[1] if against else None, "stdin" if text == "-" else text, chunks, _kv_type()
    )
    num_chunks = min(len(chunks), most or len(chunks))

    def load(stack: ExitStack) -> list[LLM]:
        return [
            stack.enter_context(_loaded(each, name, context, threads, backend, placing))
            for each, name in zip(opened, names, strict=True)
        ]

    scores = _measured(description, restart, load, chunks, num_chunks)
    summary = Summary.of(scores)
    if as_json:
        echo_json(_as_object(description, summary, num_chunks))
    else:
        click.echo(_tables(description, summary, num_chunks), nl=False)
    if plot is not None:
        show(list(_charts(description, summary, scores, chunks)), plot)


def _measured(
    description: Description,
    restart: bool,
    load: Callable[[ExitStack], list[LLM]],
    chunks: Chunks,
    num_chunks: int,
) -> Scores:
    """Return the scores of the first chunks: stored ones, and those that are computed with a progress bar."""
    from chaski.runner.evaluation.evaluation import evaluate
    from chaski.runner.evaluation.records import Records

    with Records.open(description, restart) as records:
        _note_stored(min(len(records), num_chunks), num_chunks)
        with closing(_Progress(description.model.name, records, num_chunks)) as progress:
            try:
                evaluate(load, chunks, num_chunks, records, progress)
            except KeyboardInterrupt:
                click.echo(
                    f"Stopped after {len(records)} of {num_chunks} chunks; run the command again to continue",
                    err=True,
                )
                raise SystemExit(130) from None
        return records.scores(num_chunks)


def _note_stored(stored: int, num_chunks: int) -> None:
    """Tell on stderr that some scores come from an earlier run."""
    if stored == num_chunks:
        click.echo("Shown from stored scores; --restart measures again", err=True)
    elif stored:
        click.echo(f"Continued after {stored} of {num_chunks} chunks", err=True)


def _read(text: str) -> str:
    from chaski.errors import OptionError
    from chaski.regular_files import read_regular

    try:
        data = sys.stdin.buffer.read() if text == "-" else read_regular(Path(text))
        return data.decode()
    except OSError as error:
        raise OptionError(f"{text} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise OptionError(
            f"{text} is not a text in UTF-8: byte {error.start} is {data[error.start]:#04x}; convert it first"
        ) from None


def _opened(name: str) -> OpenedModel:
    """Open the weights of a model without its adapters, its draft and its encoder of images."""
    from chaski.runner.loading.files import OpenedModel
    from chaski.runner.loading.pulling import find_or_pull
    from chaski.store.model import StoredModel

    return OpenedModel.of(StoredModel(None, find_or_pull(name).path))


def _kv_type() -> str | None:
    from chaski.env import Environment

    return Environment.read().kv_type


def _loaded(
    opened: OpenedModel,
    name: str,
    context: int,
    threads: int | None,
    backend: str | None,
    placing: dict[str, Any],
) -> LLM:
    from chaski.progress_bar import ProgressBar
    from chaski.runner.evaluation.evaluation import BATCH_OUTPUTS
    from chaski.runner.loading.loader import load_parts
    from chaski.runner.loading.parts import ModelParts, PartOptions

    asked = PartOptions(threads=threads, context=context, parallel=1, num_outputs=BATCH_OUTPUTS, **placing)
    parts = ModelParts.of(opened, asked)
    with closing(ProgressBar(f"loading {name}")) as bar:
        return load_parts(parts, opened.defaults, backend, prompt_cache=False, progress=bar)


class _Progress:
    """A bar with the perplexity so far."""

    def __init__(self, name: str, records: Records, num_chunks: int) -> None:
        from chaski.progress_bar import ProgressBar

        self._bar = ProgressBar(f"evaluating {name}")
        self._records = records
        self._num_chunks = num_chunks

    def __call__(self, done: int) -> None:
        from chaski.runner.evaluation.summary import Summary

        detail = f"chunk {done} of {self._num_chunks}"
        if done:
            detail += f", perplexity {Summary.of(self._records.scores(done)).perplexity.value:.4g}"
        self._bar(done / self._num_chunks, detail)

    def close(self) -> None:
        self._bar.close()


def _as_object(description: Description, summary: Summary, num_chunks: int) -> dict[str, Any]:
    from msgspec import to_builtins

    return {
        "model": to_builtins(description.model),
        "against": to_builtins(description.against),
        "text": description.text,
        "context": description.context,
        "chunks": num_chunks,
        **to_builtins(summary),
    }


def _tables(description: Description, summary: Summary, num_chunks: int) -> str:
    rows = [
        ("perplexity", _with_error(summary.perplexity)),
        ("scored", f"{summary.tokens:,} tokens in {num_chunks} chunk(s) of {description.context}"),
    ]
    parts = [section(f"{_short(description.model)} on {description.text}", rows)]
    if summary.comparison is not None and description.against is not None:
        found = summary.comparison
        parts.append(section(f"Against {_short(description.against)}", _comparison_rows(found)))
        rows = [(_place(name), f"{value:.6f}") for name, value in found.divergences.items()]
        parts.append(section("Percentiles of the KL divergence, in nats", rows))
    return "\n".join(parts)


def _short(subject: Subject) -> str:
    """Return the name of a stored model, or the file name of a path."""
    return Path(subject.name).name if subject.name.endswith(".gguf") else subject.name


def _place(percentile: str) -> str:
    return _EXTREMES.get(percentile, f"{percentile} %")


def _comparison_rows(found: Comparison) -> list[tuple[str, str]]:
    return [
        ("its perplexity", _with_error(found.reference_perplexity)),
        ("perplexity ratio", _with_error(found.perplexity_ratio, 5)),
        ("KL divergence", f"{_with_error(found.divergence, 6)} nats, the mean"),
        ("same top token", f"{_percent(found.agreement)} of the tokens"),
        ("probability change", f"{_percent(found.change, 3)}, of the text's tokens"),
        ("its size", f"{_percent(found.root_mean_square, 3)}, root mean square"),
    ]


def _with_error(found: Estimate, digits: int = 4) -> str:
    return f"{found.value:.{digits}f} ± {found.error:.{digits}f}"


def _percent(found: Estimate, digits: int = 2) -> str:
    return f"{100 * found.value:.{digits}f} ± {100 * found.error:.{digits}f} %"


def _charts(description: Description, summary: Summary, scores: Scores, chunks: Chunks) -> Sequence[Chart]:
    """Return the perplexity after each of some chunks, and the percentiles of the divergence."""
    from chaski.runner.evaluation.summary import Summary

    num_chunks = len(scores) // chunks.num_scored
    step = -(-num_chunks // _MOST_BARS)
    ends = [*range(step, num_chunks, step), num_chunks]
    bars = []
    for end in ends:
        found = Summary.of(scores[: end * chunks.num_scored])
        other = () if found.comparison is None else (found.comparison.reference_perplexity.value,)
        text = _with_error(found.perplexity, 2)
        bars.append(Bar(f"{end} chunk(s)", (found.perplexity.value,), text, other))
    mark = "" if description.against is None else f"; marks show {_short(description.against)}"
    charts = [Chart(f"Perplexity of {_short(description.model)} after the first chunks{mark}", bars)]
    if summary.comparison is not None:
        places = summary.comparison.divergences.items()
        title = "KL divergence from the reference by percentile of the tokens, in nats"
        charts.append(Chart(title, [Bar(_place(place), (value,), f"{value:.4f}") for place, value in places]))
    return charts
