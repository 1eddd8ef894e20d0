"""`chaski quantize`: writes a GGUF file again with its tensors in other types."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chaski.cli.layout import duration, size, size_in_bytes
from chaski.cli.output_file import check_target

if TYPE_CHECKING:
    from chaski.formats.gguf import GGUFFile
    from chaski.formats.mixture import Wishes
    from chaski.formats.quant import QuantType
    from chaski.formats.requantize import Plan

__all__ = ["command"]

_TENSOR_TYPE = "TYPE"


@click.command("quantize", short_help="Write a GGUF file with smaller tensor types.")
@click.argument("source", metavar="IN")
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--type",
    "mixture",
    default="Q4_K_M",
    show_default=True,
    metavar="TYPE",
    help="Q8_0, Q6_K, Q5_K_M, Q5_K_S, Q4_K_M, Q4_K_S, IQ4_XS, IQ4_NL, Q3_K_L, Q3_K_M, Q3_K_S, IQ3_M, IQ3_S, "
    "Q2_K, Q5_1, Q5_0, Q4_1, Q4_0, NVFP4, Q2_0, Q1_0, TQ2_0, TQ1_0, F16, BF16 or F32; with an importance "
    "matrix also IQ3_XS, IQ3_XXS, IQ2_M, IQ2_S, IQ2_XS, IQ2_XXS, Q2_K_S, IQ1_M or IQ1_S.",
)
@click.option(
    "--imatrix",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="An importance matrix of the model, by `chaski imatrix` or llama-imatrix.",
)
@click.option("--pure", is_flag=True, help="Give all matrices the same type.")
@click.option(
    "--tensor-type",
    "tensor_types",
    multiple=True,
    metavar="PATTERN=TYPE",
    help="Type of the tensors whose names contain a match of this regular expression, such as ffn_down=q6_k. "
    "May be given several times; the first match decides.",
)
@click.option(
    "--output-tensor-type",
    "output_type",
    metavar=_TENSOR_TYPE,
    help="Type of the output matrix, output.weight.",
)
@click.option(
    "--token-embedding-type", "embedding_type", metavar=_TENSOR_TYPE, help="Type of the embeddings of tokens."
)
@click.option("--dry-run", is_flag=True, help="Show the types and sizes of the tensors and write nothing.")
@click.help_option("-h", "--help")
def command(
    source: str,
    out: Path,
    mixture: str,
    imatrix: Path | None,
    pure: bool,
    tensor_types: tuple[str, ...],
    output_type: str | None,
    embedding_type: str | None,
    dry_run: bool,
) -> None:
    """Write the GGUF file IN to OUT with the tensor types of a mixture.

    IN is a file of any type, the first of several parts, or the name of a model. Quantizing a file that is
    quantized already loses more than quantizing the original.
    """
    from chaski.formats.gguf import open_gguf
    from chaski.formats.importance import read_importance
    from chaski.formats.requantize import plan_types

    path = _path(source)
    check_target(out)
    _check_differs(path, out)
    wishes = _wishes(tensor_types, output_type, embedding_type, pure)
    importance = None if imatrix is None else read_importance(imatrix)
    with open_gguf(path) as file:
        plan = plan_types(file, mixture, wishes, importance)
        if dry_run:
            _show(file, plan)
        else:
            _write(file, out, plan)


def _path(source: str) -> Path:
    """Return the file of a path or of a model's name."""
    from chaski.store.model import find_model

    path = Path(source)
    return path if path.exists() or path.suffix == ".gguf" else find_model(source).path


def _check_differs(path: Path, out: Path) -> None:
    from chaski.errors import OptionError
    from chaski.formats.gguf import part_paths

    if out.resolve() in {part.resolve() for part in part_paths(path)}:
        raise OptionError(f"{out} is the file to read; give the result another name")


def _wishes(
    tensor_types: tuple[str, ...], output: str | None, embedding: str | None, is_pure: bool
) -> Wishes:
    from chaski.formats.mixture import Wishes, find_type

    return Wishes(
        output=None if output is None else find_type(output),
        embedding=None if embedding is None else find_type(embedding),
        tensors=tuple(map(_tensor_type, tensor_types)),
        is_pure=is_pure,
    )


def _tensor_type(text: str) -> tuple[re.Pattern[str], QuantType]:
    """Read PATTERN=TYPE."""
    from chaski.errors import OptionError
    from chaski.formats.mixture import find_type

    pattern, equals, type = text.rpartition("=")
    if not (pattern and equals and type):
        raise OptionError(f"--tensor-type {text!r:.60} is not PATTERN=TYPE, such as ffn_down=q6_k")
    try:
        return re.compile(pattern.lower()), find_type(type)
    except re.error as error:
        raise OptionError(f"--tensor-type: {pattern!r:.60} is not a regular expression: {error}") from None


def _write(file: GGUFFile, out: Path, plan: Plan) -> None:
    from chaski.errors import OptionError
    from chaski.formats.requantize import requantize
    from chaski.progress_bar import ProgressBar

    started = time.monotonic()
    with closing(ProgressBar(f"quantizing {file.path.name}")) as bar:
        try:
            requantize(file, out, plan, _share(bar))
        except OSError as error:
            raise OptionError(f"{error.filename or out}: {error.strerror or error}") from None
    nbytes = sum(plan.sizes(file).values())
    click.echo(
        f"{out}: {plan.mixture.name}, {size(file.num_weights)} parameters in {len(file.tensors)} tensors, "
        f"{size_in_bytes(nbytes)}, {8 * nbytes / file.num_weights:.2f} bits per weight, "
        f"{duration(time.monotonic() - started)}"
    )
    for note in plan.notes(file):
        click.echo(note, err=True)


def _share(bar: Callable[[float], None]) -> Callable[[int, int], None]:
    return lambda done, total: bar(done / total)


def _show(file: GGUFFile, plan: Plan) -> None:
    sizes = plan.sizes(file)
    width = max(map(len, file.tensors))
    for name, tensor in file.tensors.items():
        click.echo(
            f"{name:{width}}  {tensor.type.name:>7} {size_in_bytes(tensor.nbytes):>10}  "
            f"{plan.types[name].name:>7} {size_in_bytes(sizes[name]):>10}"
        )
    before, after = sum(tensor.nbytes for tensor in file.tensors.values()), sum(sizes.values())
    click.echo(f"{plan.mixture.name}: {size_in_bytes(before)} become {size_in_bytes(after)}")
