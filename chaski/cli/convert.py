"""`chaski convert`: converts a Hugging Face checkpoint to a GGUF file."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from chaski.cli.layout import duration, size, size_in_bytes
from chaski.cli.output_file import check_target

if TYPE_CHECKING:
    from chaski.formats.gguf import GGUFFile

__all__ = ["command"]


class _Size(click.ParamType[int]):
    """A number of bytes, such as 4GB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        from chaski.env import parse_size

        try:
            size = parse_size(str(value))
        except ValueError as error:
            self.fail(f"{value!r} is not {error}", param, context)
        return size or self.fail("a part must have room for tensors", param, context)


@click.command("convert", short_help="Convert a Hugging Face checkpoint to GGUF.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "type_",
    default="F16",
    show_default=True,
    metavar="TYPE",
    help="F32, F16, BF16, Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q5_1, Q5_0, Q4_K_M, Q4_K_S, Q4_1, Q4_0, IQ4_NL, "
    "IQ4_XS, Q3_K_L, Q3_K_M, Q3_K_S or Q2_K.",
)
@click.option(
    "--projector",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the image encoder to this separate file, in llama.cpp's layout.",
)
@click.option(
    "--target",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="The checkpoint that a draft model was trained for; its configuration and tokenizer suffice.",
)
@click.option(
    "--base",
    metavar="MODEL",
    help="The model that a LoRA adapter was trained for: a checkpoint folder with at least config.json, "
    "a GGUF file, or a model name.",
)
@click.option(
    "--task",
    metavar="NAME",
    help="Merge a task adapter of Jina Embeddings 3 into the weights, such as retrieval.query.",
)
@click.option(
    "--split-max-size",
    type=_Size(),
    metavar="SIZE",
    help="Write several files, each with tensors of at most SIZE, such as 4GB.",
)
@click.help_option("-h", "--help")
@click.pass_context
def command(
    context: click.Context,
    folder: Path,
    out: Path,
    type_: str,
    projector: Path | None,
    target: Path | None,
    base: str | None,
    task: str | None,
    split_max_size: int | None,
) -> None:
    """Convert the checkpoint in FOLDER (config.json, safetensors, tokenizer) to the GGUF file OUT.

    FOLDER may also contain a PEFT LoRA adapter (adapter_config.json, adapter_model.safetensors).

    FOLDER may also be a GGUF file, or a part of one: OUT joins its parts, and --split-max-size makes parts of
    another size. Its tensors keep their types.
    """
    from chaski.convert.adapter import is_adapter
    from chaski.convert.convert import convert
    from chaski.errors import OptionError
    from chaski.progress_bar import ProgressBar

    others = {"--projector": projector, "--target": target, "--task": task}
    if folder.is_file():
        is_default = context.get_parameter_source("type_") is ParameterSource.DEFAULT
        _convert_gguf(
            folder, out, split_max_size, {**others, "--base": base, "--type": None if is_default else type_}
        )
        return
    if is_adapter(folder):
        _convert_adapter(folder, out, type_, base, {**others, "--split-max-size": split_max_size})
        return
    if base is not None:
        raise OptionError(f"{folder} is not an adapter, so it has no base model; convert it without --base")

    if projector is not None and projector.resolve() == out.resolve():
        raise OptionError(f"{out} cannot also be the projector's file; give --projector another name")
    for path in filter(None, (out, projector)):
        check_target(path)
    started = time.monotonic()
    with closing(ProgressBar(f"converting {folder.name}")) as bar:

        def report(done: int, total: int) -> None:
            bar(done / total)

        try:
            summary = convert(folder, out, type_, report, projector, target, task, split_max_size)
        except OSError as error:
            raise OptionError(f"{error.filename or out}: {error.strerror or error}") from None
    seconds = time.monotonic() - started
    click.echo(
        f"{_span(summary.paths)}: {summary.architecture}, {size(summary.num_parameters)} parameters in "
        f"{summary.num_tensors} tensors, {size_in_bytes(summary.nbytes)}, {duration(seconds)}"
    )
    if summary.left_out:
        click.echo(f"The task adapters are left out; --task merges one: {', '.join(summary.left_out)}")


def _span(paths: Sequence[Path]) -> str:
    """Return the name of a file, or of the first and the last part."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1].name}"


def _convert_gguf(source: Path, out: Path, split_max_size: int | None, others: Mapping[str, object]) -> None:
    """Write a GGUF file in one part, or in parts of another size."""
    from chaski.errors import OptionError
    from chaski.formats.gguf import open_gguf
    from chaski.formats.requantize import merge
    from chaski.progress_bar import ProgressBar

    if given := [name for name, value in others.items() if value is not None]:
        raise OptionError(f"{source} is a GGUF file, whose tensors stay as they are; leave out {given[0]}")
    check_target(out)
    started = time.monotonic()
    with open_gguf(source) as file, closing(ProgressBar(f"writing {out.name}")) as bar:
        num_tensors, nbytes = len(file.tensors), sum(tensor.nbytes for tensor in file.tensors.values())
        try:
            paths = merge(file, out, lambda done, total: bar(done / total), split_max_size)
        except OSError as error:
            raise OptionError(f"{error.filename or out}: {error.strerror or error}") from None
    click.echo(
        f"{_span(paths)}: {num_tensors} tensors, {size_in_bytes(nbytes)}, "
        f"{duration(time.monotonic() - started)}"
    )


def _convert_adapter(
    folder: Path, out: Path, type_: str, base: str | None, others: Mapping[str, object]
) -> None:
    from chaski.convert.adapter import convert_adapter
    from chaski.errors import OptionError

    if given := [name for name, value in others.items() if value is not None]:
        raise OptionError(f"{folder} is an adapter; convert it without {given[0]}")
    check_target(out)
    started = time.monotonic()
    try:
        summary = convert_adapter(folder, out, _base(base), type_)
    except OSError as error:
        raise OptionError(f"{error.filename or out}: {error.strerror or error}") from None
    click.echo(
        f"{out}: adapter of {summary.architecture}, {size(summary.num_parameters)} parameters for "
        f"{summary.num_matrices} matrices, {size_in_bytes(summary.nbytes)}, "
        f"{duration(time.monotonic() - started)}"
    )


def _base(base: str | None) -> Path | GGUFFile | None:
    """Return the folder or file of a base model, given by path or model name."""
    from chaski.model.file_dialects import open_model
    from chaski.store.model import find_model

    if base is None or Path(base).is_dir():
        return None if base is None else Path(base)
    return open_model(base if Path(base).is_file() else find_model(base).path)
