"""HRM-Text (Sapient 2026): two stacks of layers in turn, a fast one several times and then a slow one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Tensor, Weight
from chaski.ml.nn import DecoderLayer, Module, PlainRMSNorm
from chaski.model.arch import llama, qwen2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.gates import GatedAttention
from chaski.model.input import Inputs

ARCHITECTURE = Architecture(
    "hrm_text",
    "HRM-Text, DFM Mimir",
    notes="No token sees those after it, as in llama.cpp; the release lets the tokens of an instruction see "
    "each other.",
    reads=(
        "embedding_scale",
        "hrm.h_cycles",
        "hrm.l_cycles",
        "hrm.layers_per_stack",
        "hrm.prefix_lm",
    ),
)


class Layer(llama.Layer):
    def norm(self, config: DecoderConfig) -> PlainRMSNorm:
        return PlainRMSNorm(config.eps)


class FirstState(Module):
    """The state of the fast stack before its first pass, the same for all tokens."""

    def __init__(self, size: int) -> None:
        self.z_l_init = Weight((size,))


class Model(qwen2.Model):
    """`blk` has the layers of the fast stack and then those of the slow one; each pass has its own caches."""

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        arch = file.architecture
        self._size, self._slow_passes, self._fast_passes = (
            file.get(f"{arch}.hrm.{name}", int) for name in ("layers_per_stack", "h_cycles", "l_cycles")
        )
        self._embedding_factor = file.get(f"{arch}.embedding_scale", float, 0.0) or 1.0
        super().__init__(file, projector)
        self.hrm = FirstState(self.config.hidden_size)

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        config = super().read_config(file)
        counts = self._size, self._slow_passes, self._fast_passes
        if min(counts) < 1 or config.num_layers != self._size * self._slow_passes * (self._fast_passes + 1):
            raise ModelError(
                f"{file.path}: {file.architecture}.block_count = {config.num_layers} is not the number of "
                f"layers of all passes: {counts[0]} layers_per_stack · {counts[1]} h_cycles · ({counts[2]} "
                "l_cycles + 1)"
            )
        return config

    def norm(self, config: DecoderConfig) -> PlainRMSNorm:
        return PlainRMSNorm(config.eps)

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        c = self.config
        gates = c.num_heads * c.value_size
        return [Layer(c, GatedAttention(c, gates), self.ffn(file)) for _ in range(2 * self._size)]

    def embed(self, inputs: Inputs) -> Tensor:
        return super().embed(inputs) * self._embedding_factor

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope, left = self.positions(inputs), iter(caches)
        fast, slow = self.blk[: self._size], self.blk[self._size :]
        high = self.embed(inputs)
        mixed = ops.add_vector(high, self.hrm.z_l_init)
        for cycle in range(1, self._slow_passes + 1):
            for _ in range(self._fast_passes):
                low = self.output_norm(_pass(fast, mixed, rope, left, None))
                mixed = high + low
            outputs = inputs.outputs if cycle == self._slow_passes else None
            high = _pass(slow, mixed, rope, left, outputs)
            if outputs is None:
                high = self.output_norm(high)
                mixed = high + low
        return self.head(high)


def _pass(
    stack: Sequence[DecoderLayer],
    x: Tensor,
    rope: Tensor,
    caches: Iterator[LayerCache],
    outputs: Tensor | None,
) -> Tensor:
    """Return the states after the layers of a stack; the last layer keeps the rows `outputs`, if not None."""
    for layer in stack:
        x = layer(x, rope, next(caches), outputs=outputs if layer is stack[-1] else None)
    return x
