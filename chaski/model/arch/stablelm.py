"""StableLM 2 and 3B (Bellagente et al. 2024): layer norms, a rope for a part of each head, and gates."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Tensor
from chaski.ml.nn import DecoderLayer, HeadNorms, SwiGLU
from chaski.model.arch import gpt2, starcoder2
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig

ARCHITECTURE = Architecture(
    "stablelm",
    "StableLM 2 and 3B, Stable Code, Zephyr 3B",
    reads=("use_parallel_residual",),
)


class Attention(gpt2.Attention):
    """Attention that may normalize each head of queries and keys (StableLM 2 12B)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.attn_q_norm = HeadNorms(config.num_heads, config.head_size, config.eps, optional=True)
        self.attn_k_norm = HeadNorms(config.num_kv_heads, config.head_size, config.eps, optional=True)

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projections(x)
        if self.attn_q_norm.weight.is_present:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        return q, k, v


class Model(starcoder2.Model):
    def layer(self, file: GGUFFile) -> DecoderLayer:
        # Files of models that do not state it say that blocks are parallel; the second norm shows it.
        is_stated = file.get("stablelm.use_parallel_residual", bool, False)
        is_parallel = is_stated and "blk.0.ffn_norm.weight" not in file.tensors
        kind = gpt2.OneNormLayer if is_parallel else gpt2.Layer
        return kind(self.config, Attention(self.config), self.ffn())

    def ffn(self) -> SwiGLU:
        return SwiGLU(self.config.hidden_size, self.config.ffn_size)
