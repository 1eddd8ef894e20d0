"""Models whose answers appear by denoising: masks become tokens over several steps (diffusion).

All tokens of such a model see each other, so it has no answer that grows at its end.
"""

from __future__ import annotations

from msgspec import Struct

from chaski.errors import ModelError
from chaski.formats.gguf import GGUFFile
from chaski.model.config import DecoderConfig

__all__ = ["Denoising", "denoising_config", "read_denoising"]

_MASK = "tokenizer.ggml.mask_token_id"
_SHIFT = "diffusion.shift_logits"


class Denoising(Struct, frozen=True):
    """How a model denoises an answer.

    mask: the token that stands for an unknown one.
    is_shifted: the outputs of a position are for the token after it, as in a model that was causal before.
    """

    mask: int
    is_shifted: bool


def denoising_config(file: GGUFFile) -> DecoderConfig:
    """Return the configuration of a model that denoises. Raises what `DecoderConfig.read` raises."""
    return DecoderConfig.read(file, is_causal=False, denoises=True)


def read_denoising(file: GGUFFile) -> Denoising:
    """Return how the model of a file denoises. Raises ModelError for a file that names no mask."""
    mask = file.get(_MASK, int, None)
    if mask is None:
        raise ModelError(
            f"{file.path}: {_MASK} is missing, though the model answers by replacing masks; convert the "
            "checkpoint again"
        )
    return Denoising(mask, file.get(_SHIFT, bool, True))
