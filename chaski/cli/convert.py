"""`chaski convert`: a Hugging Face checkpoint becomes a GGUF file."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import click

from chaski.cli.layout import duration, size, size_in_bytes

__all__ = ["command"]


@click.command("convert", short_help="Convert a Hugging Face checkpoint to GGUF.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "type_",
    default="F16",
    show_default=True,
    metavar="TYPE",
    help="F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1 or Q4_0.",
)
@click.option(
    "--projector",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Put the encoder of images into a file of its own, as llama.cpp has it.",
)
@click.help_option("-h", "--help")
def command(folder: Path, out: Path, type_: str, projector: Path | None) -> None:
    """Convert the checkpoint in FOLDER (config.json, safetensors, tokenizer) to the GGUF file OUT."""
    from chaski.cli.progress import LoadingBar
    from chaski.convert.convert import convert

    started = time.monotonic()
    with closing(LoadingBar(f"converting {folder.name}")) as bar:
        summary = convert(folder, out, type_, bar, projector)
    seconds = time.monotonic() - started
    click.echo(
        f"{out}: {summary.architecture}, {size(summary.num_parameters)} parameters in {summary.num_tensors} "
        f"tensors, {size_in_bytes(summary.nbytes)}, {duration(seconds)}"
    )
