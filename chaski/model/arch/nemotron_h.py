"""Nemotron H and Nemotron 3 Nano (NVIDIA 2025): each layer is Mamba 2, attends, or feeds forward.

`nemotron_h_moe.py` has experts in the last kind of layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import MLP, Module, RMSNorm, output_rows
from chaski.model.arch.smollm3 import UnrotatedAttention
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.nextn import nextn_blocks, trunk_config
from chaski.model.rope import NO_ROPE
from chaski.model.state_space import Mamba2, Mamba2Config

ARCHITECTURE = Architecture(
    "nemotron_h",
    "Nemotron H, Nemotron Nano 2",
    tools=("nemotron",),
    thinking=("nemotron",),
    fixed={"attention.causal": (True,)},
)


class Layer(Module):
    """`block` takes the norm and `context`: a cache if it has one, preceded by no positions if it attends."""

    def __init__(self, config: DecoderConfig, block: Any) -> None:
        self.attn_norm = RMSNorm(config.hidden_size, config.eps)
        self.block = block

    def __call__(self, x: Tensor, *context: Any, outputs: Tensor | None) -> Tensor:
        h, x = output_rows(outputs, self.block(self.attn_norm(x), *context), x)
        return x + h


class Model(Decoder):
    def __init__(self, file: GGUFFile) -> None:
        config = trunk_config(file, DecoderConfig.read(file))
        super().__init__(config)
        self.unused = nextn_blocks(file, config)
        mamba = Mamba2Config.read(file)
        kinds: list[LayerKind | None] = []
        self.blk: list[Layer] = []
        for kv_heads, size in islice(zip(config.kv_heads, config.ffn_sizes, strict=True), config.num_layers):
            kind: LayerKind | None = None
            if kv_heads:
                block: Module = UnrotatedAttention(config)
                kind = Causal(config.kv_shape(NO_ROPE))
            elif size:
                block = self.ffn(file, size)
            else:
                block = Mamba2(config.hidden_size, config.eps, mamba)
                kind = mamba.kind()
            kinds.append(kind)
            self.blk.append(Layer(config, block))
        self._kinds = tuple(kinds)

    def ffn(self, file: GGUFFile, size: int) -> Module:
        """Return the feed-forward block of a layer."""
        return MLP(self.config.hidden_size, size, ops.squared_relu)

    def layer_kinds(self) -> Sequence[LayerKind]:
        return [kind for kind in self._kinds if kind is not None]

    def __call__(self, inputs: Inputs, caches: Sequence[Any]) -> Tensor:
        x = self.token_embd(inputs.tokens)
        rest = iter(caches)
        for layer, kind in zip(self.blk, self._kinds, strict=True):
            cache = () if kind is None else (next(rest),)
            context = (None, *cache) if isinstance(kind, Causal) else cache
            x = layer(x, *context, outputs=inputs.enter(layer, self.blk, x))
        return self.head(inputs.leave(x))
