"""ChatGLM 2 and 3, and GLM 4 of 2024 (GLM Team 2024): Llama with joined gates and a partial rope."""

from __future__ import annotations

from chaski.formats.gguf import GGUFFile
from chaski.ml.nn import FusedGLU
from chaski.model.arch import llama
from chaski.model.architecture import Architecture

ARCHITECTURE = Architecture("chatglm", "ChatGLM 2 and 3, GLM 4 9B, GLM Edge, LongWriter", tools=("glm-4",))


class Model(llama.Model):
    def ffn(self, file: GGUFFile) -> FusedGLU:
        return FusedGLU(self.config.hidden_size, self.config.ffn_size)
