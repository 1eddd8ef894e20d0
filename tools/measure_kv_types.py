"""Measure what each type of keys and values loses: `python -m tools.measure_kv_types FILE`.

FILE is a GGUF file of a real model. `tests/data/evaluation.txt` is scored in chunks of 2,048 tokens: the
first half of a chunk is only context. The reference is the same file with keys and values in float32. The
command prints a table. With `--llama-python`, an interpreter with xllamacpp, rows for llama.cpp follow, with
its own reference.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from numpy.typing import NDArray

from chaski.formats.gguf import open_gguf
from chaski.kvcache import KV_TYPES
from chaski.runner.evaluation.chunks import Chunks
from chaski.runner.evaluation.evaluation import BATCH_OUTPUTS, evaluate
from chaski.runner.evaluation.records import Records
from chaski.runner.evaluation.scores import Scores, compared
from chaski.runner.evaluation.summary import Summary
from chaski.runner.llm import LLM
from chaski.runner.loading.files import OpenedModel
from chaski.runner.loading.loader import load_parts
from chaski.runner.loading.parts import ModelParts, PartOptions
from chaski.store.model import find_model
from chaski.text.tokenizer import file_tokenizer
from tools.measure_types import TEXT

__all__ = ["main"]

REFERENCE = "f32"
THEIRS = ("f16", "q8_0", "q4_0")
"""Types of llama.cpp that are measured."""


def loaded(file: Path, context: int, kv_type: str) -> LLM:
    """Load a model with keys and values of a type, or of two as keys:values."""
    opened = OpenedModel.of(find_model(str(file)))
    asked = PartOptions(context=context, parallel=1, num_outputs=BATCH_OUTPUTS, kv_type=kv_type)
    return load_parts(ModelParts.of(opened, asked), opened.defaults, None, prompt_cache=False)


def measured(file: Path, chunks: Chunks, kv_type: str) -> tuple[Summary, int]:
    """Return how far the predictions are from those of the reference, and the bytes of a token."""
    records, sizes = Records(chunks.num_scored, None), []

    def load(stack: ExitStack) -> list[LLM]:
        models = [stack.enter_context(loaded(file, chunks.context, each)) for each in (kv_type, REFERENCE)]
        sizes.append(round(models[0].memory().cache / chunks.context))
        return models

    evaluate(load, chunks, len(chunks), records)
    return Summary.of(records.scores(len(chunks))), sizes[0]


def measured_there(python: str, file: Path, chunks: Chunks) -> dict[str, Summary]:
    """Return how far llama.cpp's predictions with each type are from its own with the reference."""
    first = chunks.num_unscored - 1
    scores: dict[str, list[Scores]] = {kv_type: [] for kv_type in THEIRS}
    for ids in (chunks[index] for index in range(len(chunks))):
        reference = _logits(python, file, ids[:-1], first, REFERENCE)
        for kv_type, found in scores.items():
            logits = _logits(python, file, ids[:-1], first, kv_type)
            found.append(compared(logits, reference, ids[first + 1 :]))
    return {kv_type: Summary.of(np.concatenate(found)) for kv_type, found in scores.items()}


def _logits(python: str, file: Path, ids: list[int], first: int, kv_type: str) -> NDArray[np.float32]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "logits.npy"
        asked = {"logits": [ids], "file": str(path), "first": first, "kv_type": kv_type}
        command = [python, "-m", "tests.llama_cpp_logits", str(file)]
        subprocess.run(command, input=json.dumps(asked), text=True, check=True, stdout=subprocess.DEVNULL)
        found: NDArray[np.float32] = np.load(path)[0]
        return found


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--context", default=2048, show_default=True, help="Tokens of a chunk.")
@click.option("--type", "types", multiple=True, help="A type, or two as keys:values.  [default: all]")
@click.option("--llama-python", help="An interpreter with xllamacpp, to measure llama.cpp, too.")
def main(file: Path, context: int, types: tuple[str, ...], llama_python: str | None) -> None:
    """Measure the types of keys and values of the model in FILE."""
    with open_gguf(file) as opened:
        chunks = Chunks.of(TEXT.read_text(), file_tokenizer(opened), context)
    click.echo("| type | bytes of a token | perplexity | its change | divergence | same most likely token |")
    click.echo("|---|--:|--:|--:|--:|--:|")
    for kv_type in types or KV_TYPES:
        summary, size = measured(file, chunks, kv_type)
        click.echo(_row(f"`{kv_type}`", f"{size:,}", summary))
    for kv_type, summary in measured_there(llama_python, file, chunks).items() if llama_python else ():
        click.echo(_row(f"`{kv_type}` of llama.cpp", "", summary))


def _row(name: str, size: str, summary: Summary) -> str:
    comparison = summary.comparison
    assert comparison is not None
    return (
        f"| {name} | {size} | {summary.perplexity.value:.3f} "
        f"| {100 * (comparison.perplexity_ratio.value - 1):+.2f} % | {comparison.divergence.value:.5f} "
        f"| {100 * comparison.agreement.value:.1f} % |"
    )


if __name__ == "__main__":
    main()
