"""Shapes of real models, one file a family, by the names that the benchmarks know them by.

Where a file of the whole model would have more than 2 GiB, it has fewer layers, and as much less of the
vocabulary. So the output matrix has its real part in the work, and a rate times that share of the layers is
about the whole model's.
"""

from __future__ import annotations

from benchmarks.shapes import gemma3, gemma4, gptoss, lfm2, llama, qwen35
from benchmarks.shapes.shape import Matrix, Shape, Vocabulary

__all__ = ["SHAPES", "Matrix", "Shape", "Vocabulary"]

SHAPES: dict[str, Shape] = {
    **llama.SHAPES,
    **qwen35.SHAPES,
    **gemma3.SHAPES,
    **gemma4.SHAPES,
    **lfm2.SHAPES,
    **gptoss.SHAPES,
}
