"""AutoRound (Intel): weights in the layouts of other methods, which `packing_format` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain

from chaski.convert.quantized.awq import gemm_weights
from chaski.convert.quantized.gptq import gptq_weights
from chaski.convert.quantized.module import Decoded, Stored
from chaski.convert.quantized.pairs import decode_pairs
from chaski.convert.quantized.scaled import decode_scaled
from chaski.errors import UnsupportedError

__all__ = ["decode_auto_round"]


def _small_floats(stored: Stored) -> Iterator[Decoded]:
    return chain(decode_scaled(stored), decode_pairs(stored))


_FORMATS: Mapping[str, Callable[[Stored], Iterator[Decoded]]] = {
    "auto_round": partial(gptq_weights, zero_offset=0),
    "auto_round:auto_awq": gemm_weights,
    "auto_round:auto_gptq": partial(gptq_weights, zero_offset=1),
    "auto_round:fp8_static": _small_floats,
    "auto_round:gptqmodel": partial(gptq_weights, zero_offset=0),
    "auto_round:llm_compressor": _small_floats,
}


def decode_auto_round(stored: Stored) -> Iterator[Decoded]:
    """Yield the weights that AutoRound packed. Raises UnsupportedError for an unknown layout."""
    found = stored.settings.get("packing_format", str, "auto_round:auto_gptq")
    if found not in _FORMATS:
        raise UnsupportedError(
            f"{stored.settings.path}: 'packing_format' {found!r:.80} cannot be decoded; known are "
            f"{', '.join(_FORMATS)}"
        )
    return _FORMATS[found](stored)
