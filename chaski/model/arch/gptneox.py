"""GPT-NeoX (Black et al. 2022): GPT-2 with a rope for a part of each head, and blocks side by side."""

from __future__ import annotations

from collections.abc import Callable

from chaski.formats.gguf import GGUFFile
from chaski.ml import ops
from chaski.ml.graph import Rope, Tensor
from chaski.ml.nn import MLP
from chaski.model.arch import gpt2
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("gptneox", "GPT-NeoX, Pythia, Dolly 2", reads=("use_parallel_residual",))


class Model(gpt2.LayerNormDecoder):
    def layer(self, file: GGUFFile) -> gpt2.Layer:
        is_parallel = file.get(f"{file.architecture}.use_parallel_residual", bool, True)
        kind = gpt2.ParallelLayer if is_parallel else gpt2.Layer
        return kind(self.config, gpt2.Attention(self.config), self.ffn())

    def ffn(self) -> Callable[[Tensor], Tensor]:
        return MLP(self.config.hidden_size, self.config.ffn_size, ops.gelu)

    def rope(self) -> Rope:
        return self.config.rope.rope(neox=True)
