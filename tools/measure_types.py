"""Measure what each quantization type loses: `python -m tools.measure_types NAME FILE`.

FILE is a GGUF file of a real model. Its weights are written again as F32, which is the reference, and then in
each mixture of types. The figures of NAME in `chaski/runner/choosing/losses.json` are replaced by those of
`chaski eval` on `tests/data/evaluation.txt`, and `make docs` shows them in `docs/models.md`.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from click.testing import CliRunner
from numpy.typing import NDArray

from chaski.cli.main import chaski_command
from chaski.formats.dequantize import dequantize
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_tensors import TensorInfo
from chaski.formats.gguf_writer import LazyTensor, write_gguf
from chaski.formats.mixture import MIXTURES
from chaski.formats.quant import QuantType
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.model import find_model
from chaski.store.recipe import Recipe
from chaski.store.store import Store

__all__ = ["TEXT", "TYPES", "write_exact", "write_mixture"]

ROOT = Path(__file__).parent.parent
TEXT = ROOT / "tests" / "data" / "evaluation.txt"
LOSSES = ROOT / "chaski" / "runner" / "choosing" / "losses.json"
TYPES = [name for name in MIXTURES if name != "F32"]
"""All mixtures, except the type of the reference."""


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


def _exact(tensor: TensorInfo) -> LazyTensor:
    def values() -> list[NDArray[np.uint8]]:
        return [dequantize(tensor.data, tensor.type, tensor.shape).reshape(-1).view(np.uint8)]

    return LazyTensor(tensor.shape, QuantType.F32, partial(values))


@click.command()
@click.argument("name")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
def main(name: str, source: Path) -> None:
    """Measure all mixtures of the model in SOURCE and write them under NAME."""
    found: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        exact = Path(folder) / "exact.gguf"
        write_exact(source, exact)
        for mixture in TYPES:
            path = write_mixture(exact, Path(folder) / mixture, mixture)
            asked = ["eval", str(path), str(TEXT), "--against", str(exact), "--json", "--restart"]
            result = CliRunner().invoke(chaski_command, asked, catch_exceptions=False)
            assert result.exit_code == 0, result.stderr
            found[mixture] = _row(json.loads(result.stdout))
            click.echo(f"{mixture} {found[mixture]}")
            path.unlink()
    losses = json.loads(LOSSES.read_text())
    losses["measured"][name] = dict(sorted(found.items(), key=lambda row: row[1]["divergence"]))
    LOSSES.write_text(json.dumps(losses, indent=2) + "\n")


def _row(found: dict[str, Any]) -> dict[str, float]:
    model, comparison = found["model"], found["comparison"]

    def value(name: str) -> float:
        return float(comparison[name]["value"])

    return {
        "bits_per_weight": round(8 * model["bytes"] / model["weights"], 2),
        "perplexity_ratio": round(value("perplexity_ratio"), 4),
        "divergence": float(f"{value('divergence'):.3g}"),
        "divergence_99": float(f"{comparison['divergences']['99']:.3g}"),
        "agreement": round(value("agreement"), 4),
    }


if __name__ == "__main__":
    main()
