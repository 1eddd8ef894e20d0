"""MiniCPM 3 (Hu et al. 2024): latent attention, factors on every added term, and LongRoPE."""

from __future__ import annotations

from msgspec.structs import replace

from chaski.formats.gguf import GGUFFile
from chaski.ml.graph import Rope
from chaski.model.arch import granite
from chaski.model.architecture import Architecture
from chaski.model.config import DecoderConfig
from chaski.model.latent import latent_attention, latent_config
from chaski.model.longrope import LongRopeModel

ARCHITECTURE = Architecture("minicpm3", "MiniCPM 3", tools=("minicpm3",), thinking=("minicpm3",))

# Files do not contain these; llama.cpp has the numbers of the only published model.
_EMBEDDING_SCALE, _DEPTH_SCALE, _BASE_SIZE = 12.0, 1.4, 256


class Model(LongRopeModel, granite.Model):
    def __init__(self, file: GGUFFile, projector: GGUFFile | None = None) -> None:
        super().__init__(file, projector)
        self._embedding_factor = _EMBEDDING_SCALE
        self._logit_divisor = self.config.hidden_size / _BASE_SIZE

    def read_config(self, file: GGUFFile) -> DecoderConfig:
        return latent_config(file, super().read_config(file))

    def layer(self, file: GGUFFile) -> granite.Layer:
        attn, factor = latent_attention(file, self.config), _DEPTH_SCALE / self.config.num_layers**0.5
        return granite.Layer(self.config, attn, self.ffn(file), factor)

    def rope(self) -> Rope:
        return replace(super().rope(), neox=True)
