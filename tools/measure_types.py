"""Measure what each quantization type loses: `python -m tools.measure_types NAME FILE [TYPE ...]`.

FILE is a GGUF file of a real model. Its weights are written again as F32, which is the reference, and then in
each mixture of types, or in those that are named. The figures of NAME in `chaski/runner/choosing/losses.json`
are replaced by those that `chaski eval` finds on `tests/data/evaluation.txt`, one after the other, and
`make docs` shows them in `docs/models.md`. Mixtures that need an importance matrix get one of another text.
With `--folder`, the reference, its logits (4 GB for a large vocabulary) and the matrix are kept for the next
call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from click.testing import CliRunner
from numpy.typing import NDArray

import chaski
from chaski.cli.main import chaski_command
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_tensors import TensorInfo
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.importance import ImportanceMatrix, read_importance
from chaski.formats.mixture import MIXTURES
from chaski.formats.quant import Floats, QuantType
from chaski.formats.requantize import plan_types, requantize
from chaski.names import ModelName
from chaski.runner.evaluation.chunks import USUAL_CONTEXT, Chunks
from chaski.runner.evaluation.scores import compared
from chaski.runner.evaluation.summary import Comparison, Summary
from chaski.store.create import create
from chaski.store.model import find_model
from chaski.store.recipe import Recipe
from chaski.store.store import Store

__all__ = ["BY_IMPORTANCE", "TEXT", "TYPES", "write_by_importance", "write_exact", "write_mixture"]

ROOT = Path(__file__).parent.parent
TEXT = ROOT / "tests" / "data" / "evaluation.txt"
IMPORTANCE_TEXT = ROOT / "docs" / "architecture.md"
LOSSES = ROOT / "chaski" / "runner" / "choosing" / "losses.json"
TYPES = [name for name in MIXTURES if name != "F32"]
"""All mixtures, except the type of the reference."""
BY_IMPORTANCE = ("Q2_K_S", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S")
"""The mixtures that need an importance matrix."""


def write_exact(source: Path, path: Path) -> None:
    """Write the weights of a file as F32, which keeps all values."""
    with open_gguf(source) as file:
        tensors = {name: _exact(tensor) for name, tensor in file.tensors.items()}
        write_gguf(path, {**file.metadata, "general.file_type": np.uint32(0)}, tensors)


def write_mixture(exact: Path, folder: Path, mixture: str) -> Path:
    """Quantize an F32 file -> the new file, in a model store in `folder`."""
    store, name = Store(folder), ModelName.parse(mixture.lower())
    for _ in create(store, name, Recipe(sources=[exact], quantize=mixture)):
        pass
    return find_model(name.short, store).path


def write_by_importance(exact: Path, path: Path, mixture: str, importance: ImportanceMatrix) -> Path:
    """Quantize an F32 file to a mixture that needs an importance matrix -> the new file, `path`."""
    with open_gguf(exact) as file:
        requantize(file, path, plan_types(file, mixture, importance=importance))
    return path


def _exact(tensor: TensorInfo) -> LazyTensor:
    def values() -> list[NDArray[np.uint8]]:
        return [dequantize(tensor.data, tensor.type, tensor.shape).reshape(-1).view(np.uint8)]

    return LazyTensor(tensor.shape, QuantType.F32, partial(values))


@click.command()
@click.argument("name")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("types", nargs=-1, type=click.Choice(TYPES), metavar="[TYPE]...")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Keep large files here.")
def main(name: str, source: Path, types: tuple[str, ...], folder: Path | None) -> None:
    """Measure mixtures of the model in SOURCE, by default all, and write them under NAME."""
    with TemporaryDirectory() as temporary:
        kept = folder or Path(temporary)
        kept.mkdir(exist_ok=True)
        exact = kept / "exact.gguf"
        if not exact.exists():
            write_exact(source, exact)
        logits = kept / "logits"
        if not logits.exists():
            _write_logits(exact, logits)
        for mixture in types or TYPES:
            path = _written(exact, Path(temporary) / mixture, mixture)
            row = _measured(path, logits)
            path.unlink()
            click.echo(f"{mixture} {row}")
            losses = json.loads(LOSSES.read_text())
            rows = losses["measured"].get(name, {}) | {mixture: row}
            losses["measured"][name] = dict(sorted(rows.items(), key=lambda row: row[1]["divergence"]))
            LOSSES.write_text(json.dumps(losses, indent=2) + "\n")


def _written(exact: Path, folder: Path, mixture: str) -> Path:
    if mixture not in BY_IMPORTANCE:
        return write_mixture(exact, folder, mixture)
    matrix = exact.with_name("importance.gguf")
    if not matrix.exists():
        _run("imatrix", str(exact), str(IMPORTANCE_TEXT), "--out", str(matrix))
    folder.mkdir()
    return write_by_importance(exact, folder / "model.gguf", mixture, read_importance(matrix))


def _chunks(path: Path) -> Iterator[tuple[Floats, list[int]]]:
    """Yield the logits of the scored tokens of each chunk of TEXT, (tokens, vocabulary), and the tokens."""
    with chaski.load(path, context=USUAL_CONTEXT, prompt_cache=False) as model:
        chunks = Chunks.of(TEXT.read_text(), model.tokenizer, USUAL_CONTEXT)
        begin = chunks.num_unscored
        for index in range(len(chunks)):
            yield model.logits(chunks[index][:-1])[begin - 1 :], chunks[index][begin:]


def _write_logits(exact: Path, folder: Path) -> None:
    """Write the logits of each chunk to a file; `folder` appears once it is complete."""
    unfinished = folder.with_suffix(".unfinished")
    unfinished.mkdir(exist_ok=True)
    for index, (logits, _) in enumerate(_chunks(exact)):
        np.save(unfinished / f"{index}.npy", logits)
    unfinished.rename(folder)


def _measured(path: Path, logits: Path) -> dict[str, float]:
    """Compare a file with the logits of the reference."""
    scores = [
        compared(found, np.load(logits / f"{index}.npy", mmap_mode="r"), targets)
        for index, (found, targets) in enumerate(_chunks(path))
    ]
    with open_gguf(path) as file:
        num_bytes, weights = sum(tensor.nbytes for tensor in file.tensors.values()), file.num_weights
    return _row(8 * num_bytes / weights, Summary.of(np.concatenate(scores)).comparison)


def _run(*arguments: str) -> None:
    """Run a command of chaski."""
    result = CliRunner().invoke(chaski_command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr


def _row(bits_per_weight: float, found: Comparison | None) -> dict[str, float]:
    assert found is not None
    return {
        "bits_per_weight": round(bits_per_weight, 2),
        "perplexity_ratio": round(found.perplexity_ratio.value, 4),
        "divergence": float(f"{found.divergence.value:.3g}"),
        "divergence_99": float(f"{found.divergences['99']:.3g}"),
        "agreement": round(found.agreement.value, 4),
    }


if __name__ == "__main__":
    main()
