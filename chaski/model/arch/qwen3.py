"""Qwen 3, dense (Yang et al. 2025): each head of queries and keys is normalized before it is rotated."""

from __future__ import annotations

from collections.abc import Sequence

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, LayerCache, LayerKind
from chaski.ml import ops
from chaski.ml.graph import Tensor
from chaski.ml.nn import MoE, RMSNorm, SwiGLU, attention
from chaski.model.arch import llama
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.decoder import Decoder
from chaski.model.input import Inputs
from chaski.model.multimodal import MultimodalProcessor
from chaski.model.projectors import PROJECTORS, read_vision

ARCHITECTURE = Architecture(
    "qwen3",
    "Qwen 3, Qwen3-Embedding, Qwen3-Reranker, InternVL 3.5, MiniCPM-V 4.5",
    tools=("qwen3",),
    thinking=("qwen3", "qwen3-thinking"),
    notes="Pictures with a projector of InternVL or MiniCPM-V.",
)


class Attention(llama.Attention):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = RMSNorm(config.head_size, config.eps)
        self.attn_k_norm = RMSNorm(config.head_size, config.eps)

    def __call__(self, x: Tensor, rope: Tensor, cache: LayerCache) -> Tensor:
        c = self._config
        q = self.attn_q_norm(self.attn_q(x).reshape(c.num_heads, c.head_size))
        k = self.attn_k_norm(self.attn_k(x).reshape(c.num_kv_heads, c.head_size))
        v = self.attn_v(x).reshape(c.num_kv_heads, c.value_size)
        k, q = ops.rope(k, rope), ops.rope(q, rope)
        return self.attn_output(attention(q, k, v, cache, scale=c.head_size**-0.5))


class Model(Decoder):
    """Qwen 3. `vision` is an image encoder from a `projector` or from the file itself (InternVL)."""

    projectors = PROJECTORS
    vision: MultimodalProcessor | None = None

    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        config = DecoderConfig.read(file)
        super().__init__(config)
        self.blk = [llama.Layer(config, Attention(config), self.ffn(file)) for _ in range(config.num_layers)]
        self._rope = config.rope.rope(neox=True)
        self.vision = read_vision(file, projector, config.hidden_size, self.projectors)

    def ffn(self, file: GGUFFile) -> SwiGLU | MoE:
        """Return the feed-forward block of a layer."""
        return SwiGLU(self.config.hidden_size, self.config.ffn_size)

    def layer_kinds(self) -> Sequence[LayerKind]:
        c = self.config
        return [Causal(c.kv_shape(self._rope))] * c.num_layers

    def __call__(self, inputs: Inputs, caches: Sequence[LayerCache]) -> Tensor:
        rope = inputs.rope_table(self._rope)
        x = inputs.with_images(self.token_embd(inputs.tokens))
        for index, (layer, cache) in enumerate(zip(self.blk, caches, strict=True)):
            x = layer(x, rope, cache, outputs=inputs.enter(layer, self.blk, x))
            x = inputs.with_deep_images(x, index)
        return self.head(inputs.leave(x))
