"""Shapes of real models, one file per family, by their names in the benchmarks.

If a file of the whole model would have more than 2 GiB, it has fewer layers and a proportionally smaller
vocabulary. So the output matrix has its real share of the work, and the rate times the share of layers is
about the whole model's rate.
"""

from __future__ import annotations

from benchmarks.shapes import deepseek2, gemma3, gemma4, glm4moe, gptoss, lfm2, llama, mamba2, qwen35
from benchmarks.shapes.shape import Matrix, Shape, Vocabulary

__all__ = ["SHAPES", "Matrix", "Shape", "Vocabulary"]

SHAPES: dict[str, Shape] = {
    **llama.SHAPES,
    **qwen35.SHAPES,
    **gemma3.SHAPES,
    **gemma4.SHAPES,
    **lfm2.SHAPES,
    **gptoss.SHAPES,
    **deepseek2.SHAPES,
    **glm4moe.SHAPES,
    **mamba2.SHAPES,
}
