"""OpenELM (Mehta et al. 2024): head norms, and layers with different numbers of heads and inner sizes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.kvcache import Causal, KVShape, LayerKind
from chaski.ml.graph import Rope
from chaski.ml.nn import DecoderLayer, SwiGLU
from chaski.model.arch import llama, qwen3
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig, of_layers

ARCHITECTURE = Architecture("openelm", "OpenELM 270M to 3B")


class Model(llama.Model):
    def read_config(self, file: GGUFFile) -> DecoderConfig:
        arch = file.architecture
        self._heads = of_layers(file, f"{arch}.attention.head_count", file.get(f"{arch}.block_count", int))
        return DecoderConfig.read(file, num_heads=self._heads[0])

    def layers(self, file: GGUFFile) -> list[DecoderLayer]:
        c = self.config
        return [self._layer(*sizes) for sizes in zip(self._heads, c.kv_heads, c.ffn_sizes, strict=True)]

    def _layer(self, heads: int, kv_heads: int, ffn_size: int) -> DecoderLayer:
        c = replace(self.config, num_heads=heads, kv_heads=(kv_heads,))
        return llama.Layer(c, qwen3.Attention(c), SwiGLU(c.hidden_size, ffn_size))

    def layer_kinds(self) -> Sequence[LayerKind]:
        c, rope = self.config, self.rope()
        return [Causal(KVShape(heads, c.head_size, c.value_size, rope)) for heads in c.kv_heads]

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
