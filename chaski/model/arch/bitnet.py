"""BitNet b1.58 (Ma et al. 2024): matrices of -1, 0 and 1 times a scale, and a norm before two of them."""

from __future__ import annotations

from collections.abc import Callable

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LayerCache
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import RMSNorm, SwiGLU, attention
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture(
    "bitnet",
    "BitNet b1.58 2B4T, 1bitLLM",
    notes="Activations are not rounded to 8 bits. Files of other converters have SiLU, whatever the "
    "checkpoint has.",
    reads=("hidden_activation",),
)


def gated_squared_relu(gate: Tensor, up: Tensor) -> Tensor:
    """relu(gate)² · up."""
    return ops.multiply(ops.squared_relu(gate), up)


_ACTIVATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "": ops.swiglu,
    "silu": ops.swiglu,
    "relu2": gated_squared_relu,
}


class Attention(llama.Attention):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_sub_norm = RMSNorm(config.num_heads * config.value_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = ops.rope(self.attn_q(x).reshape(c.num_heads, c.head_size), rope)
        k = ops.rope(self.attn_k(x).reshape(c.num_kv_heads, c.head_size), rope)
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        return self.attn_output(self.attn_sub_norm(attention(q, k, v, cache, scale=c.head_size**-0.5)))


class FeedForward(SwiGLU):
    def __init__(
        self, config: DecoderConfig, activation: Callable[[Tensor, Tensor], Tensor] = ops.swiglu
    ) -> None:
        super().__init__(config.hidden_size, config.ffn_size, activation)
        self.ffn_sub_norm = RMSNorm(config.ffn_size, config.eps)

    def __call__(self, x: Tensor) -> Tensor:
        return self.ffn_down(self.ffn_sub_norm(self._activation(self.ffn_gate(x), self.ffn_up(x))))


class Model(llama.Model):
    def layer(self, file: GGUFFile) -> llama.Layer:
        return llama.Layer(self.config, Attention(self.config), self.ffn(file))

    def ffn(self, file: GGUFFile) -> FeedForward:
        key = f"{file.architecture}.hidden_activation"
        name = file.get(key, str, "")
        if name not in _ACTIVATIONS:
            raise UnsupportedError(f"{file.path}: {key} is {name!r:.40}; only silu and relu2 are supported")
        return FeedForward(self.config, _ACTIVATIONS[name])

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True, factors=self.rope_freqs.weight.array)
