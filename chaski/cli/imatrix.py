"""`chaski imatrix`: measures on a text how much each column of a model's matrices counts."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import click

from chaski.cli.layout import duration
from chaski.cli.output_file import check_target

__all__ = ["command"]


@click.command("imatrix", short_help="Measure the importance matrix of a model.")
@click.argument("model")
@click.argument("text", type=click.Path(path_type=Path))
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file to write."
)
@click.option("--chunks", type=click.IntRange(1), metavar="N", help="Compute only the first N chunks.")
@click.option(
    "--chunk-size",
    type=click.IntRange(16),
    default=512,
    show_default=True,
    metavar="N",
    help="Tokens of a chunk; each chunk is computed without those before.",
)
@click.help_option("-h", "--help")
def command(model: str, text: Path, out: Path, chunks: int | None, chunk_size: int) -> None:
    """Compute the text in the file TEXT with MODEL, and write its importance matrix for `chaski quantize`.

    MODEL is a file or a name, best of F16, BF16 or Q8_0. The text should resemble what the model will read
    and write; some hundred kilobytes suffice. After an interruption, the same command continues.
    llama-quantize reads the file too.
    """
    from chaski.progress_bar import ProgressBar
    from chaski.runner.importance import Text, make_importance
    from chaski.runner.loading.files import OpenedModel
    from chaski.store.model import find_model

    check_target(out)
    opened = OpenedModel.of(find_model(model))
    started = time.monotonic()
    with closing(ProgressBar(f"measuring {opened.defaults.name or opened.file.path.name}")) as bar:

        def report(done: int, total: int) -> None:
            bar(done / total, f"chunk {done} of {total}")

        matrix = make_importance(opened, Text(text, chunk_size, chunks), out, None, report)
    click.echo(
        f"{out}: {len(matrix.entries)} tensors, {matrix.chunk_count} chunks of {chunk_size} tokens, "
        f"{duration(time.monotonic() - started)}"
    )
