"""Qwen 3.5 (Qwen Team 2026), text: like Qwen 3 Next, dense or with experts.

GGUF stores the first value head of every key head, then the second value head of every key head, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from numpy.typing import NDArray

from chaski.convert.config import Config
from chaski.convert.families import qwen3next, qwen3vl
from chaski.convert.family import Family
from chaski.convert.metadata import Metadata, rope
from chaski.convert.tensors import Arrange, Concatenated, Mapped, Planned

UNUSED = (r"visual\..*",)
_SECTIONS = [11, 11, 10]


def metadata(config: Config) -> Metadata:
    sections = rope(config).list("mrope_section", int) or _SECTIONS
    return qwen3next.metadata(config) | {"rope.dimension_sections": [*sections, 0, 0, 0, 0][:4]}


def inputs(config: Config, layer: int) -> Iterator[Planned]:
    keys, ratio, key_width, width = qwen3next.sizes(config)
    hidden, size = config.get("hidden_size", int), width // (keys * ratio)
    block, source, rows = f"blk.{layer}.", f"layers.{layer}.linear_attn.in_proj_", 2 * key_width

    def apart(size: int) -> Arrange:
        def arrange(values: NDArray[Any]) -> NDArray[Any]:
            return values.reshape(keys, ratio, size, *values.shape[1:]).swapaxes(0, 1)

        return arrange

    name, sources, whole = f"{block}attn_qkv.weight", (f"{source}qkv.weight",), (rows + width, hidden)
    yield Concatenated(
        name,
        (
            Mapped(name, (rows, hidden), sources, whole, lambda values: values[:rows]),
            Mapped(name, (width, hidden), sources, whole, lambda values: apart(size)(values[rows:])),
        ),
    )
    yield Mapped(f"{block}attn_gate.weight", (width, hidden), (f"{source}z.weight",), arrange=apart(size))
    for name, letter in (("ssm_beta", "b"), ("ssm_alpha", "a")):
        shape, sources = (keys * ratio, hidden), (f"{source}{letter}.weight",)
        yield Mapped(f"{block}{name}.weight", shape, sources, arrange=apart(1))
    yield from qwen3next.delta(config, layer, apart)


def tensors(config: Config, names: Set[str]) -> Iterator[Planned]:
    return qwen3next.tensors_with(inputs, config, names)


FAMILY = Family("qwen35", metadata, tensors, UNUSED, qwen3vl.VISION, observed=qwen3next.observed)
CHECKPOINTS = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
