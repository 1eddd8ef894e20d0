"""Measure what each type of keys and values loses: `python -m tools.measure_kv_types FILE`.

FILE is a GGUF file of a real model. `tests/data/evaluation.txt` is scored in chunks of 2,048 tokens: the
first half of a chunk is only context. The reference is the same file with keys and values in float32. The
command prints a table.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from chaski.formats.gguf import open_gguf
from chaski.kvcache import KV_TYPES
from chaski.runner.evaluation.chunks import Chunks
from chaski.runner.evaluation.evaluation import BATCH_OUTPUTS, evaluate
from chaski.runner.evaluation.records import Records
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


@click.command()
@click.argument("file", type=click.Path(exists=True, path_type=Path))
@click.option("--context", default=2048, show_default=True, help="Tokens of a chunk.")
@click.option("--type", "types", multiple=True, help="A type, or two as keys:values.  [default: all]")
def main(file: Path, context: int, types: tuple[str, ...]) -> None:
    """Measure the types of keys and values of the model in FILE."""
    with open_gguf(file) as opened:
        chunks = Chunks.of(TEXT.read_text(), file_tokenizer(opened), context)
    click.echo("| type | bytes of a token | perplexity | its change | divergence | same most likely token |")
    click.echo("|---|--:|--:|--:|--:|--:|")
    for kv_type in types or KV_TYPES:
        summary, size = measured(file, chunks, kv_type)
        comparison = summary.comparison
        assert comparison is not None
        click.echo(
            f"| `{kv_type}` | {size:,} | {summary.perplexity.value:.3f} "
            f"| {100 * (comparison.perplexity_ratio.value - 1):+.2f} % | {comparison.divergence.value:.5f} "
            f"| {100 * comparison.agreement.value:.1f} % |"
        )


if __name__ == "__main__":
    main()
