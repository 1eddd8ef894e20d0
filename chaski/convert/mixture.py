"""The tensor types in each mixture that `--type` accepts. The mixtures equal llama.cpp's.

The rule for a mixture such as Q4_K_M:

* Norms, biases, routers, positions and other small tensors stay F32.
* The output matrix, or the embedding that serves as one, gets Q6_K; Q8_0 in a Q8_0 file.
* In the M mixtures `attn_v` (or `attn_qkv`) and `ffn_down` get Q6_K in the first and last eighth of the
  layers and in every third between them; in Q4_K_S they get Q5_K, `attn_v` in the first four layers,
  `ffn_down` in the first eighth.
* With exactly eight experts the small `attn_k` and `attn_v` get Q8_0, and `attn_output` Q5_K in Q4_K.
* In an image encoder (`v.`, `mm.`) matrices get Q8_0, and the projection of its rows gets F16.
* If rows cannot be split into blocks of 256, the tensor gets the type of nearest size with blocks of 32; if
  that does not fit either, F16.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from chaski.errors import OptionError
from chaski.formats.quant import QuantType

__all__ = ["MIXTURES", "Mixture", "Sizes", "find_mixture"]

_SMALL = re.compile(
    r"_norm\.weight$|ffn_gate_inp|^position_embd|^token_types|shortconv\.conv|ssm_conv1d|^v\.(\w*position|patch)_embd|^v\.(position|patch)_embedding|^v\.patch_conv"
)
_LAYER = re.compile(r"blk\.(\d+)\.")
_SMALLER_BLOCKS = {
    QuantType.Q4_K: QuantType.Q5_0,
    QuantType.Q5_K: QuantType.Q5_1,
    QuantType.Q6_K: QuantType.Q8_0,
}
_PLAIN = (QuantType.F32, QuantType.F16, QuantType.BF16)


class Sizes(Struct, frozen=True):
    """The sizes that a choice depends on, in addition to names and shapes."""

    num_layers: int
    num_experts: int = 0
    shares_values: bool = (
        False  # 80 layers with grouped heads: a 70B model, whose attn_v is an eighth of attn_q
    )


class Mixture(Struct, frozen=True):
    """A choice of types. number: its value of `general.file_type`."""

    name: str
    number: int
    base: QuantType

    def types(self, shapes: Mapping[str, tuple[int, ...]], sizes: Sizes) -> dict[str, QuantType]:
        """Return the type of each of these tensors."""
        chooser = _Chooser(self, shapes, sizes)
        return {name: chooser.choose(name, shape) for name, shape in shapes.items()}


MIXTURES = {
    mixture.name: mixture
    for mixture in (
        Mixture("F32", 0, QuantType.F32),
        Mixture("F16", 1, QuantType.F16),
        Mixture("BF16", 32, QuantType.BF16),
        Mixture("Q4_0", 2, QuantType.Q4_0),
        Mixture("Q4_1", 3, QuantType.Q4_1),
        Mixture("Q5_0", 8, QuantType.Q5_0),
        Mixture("Q5_1", 9, QuantType.Q5_1),
        Mixture("Q8_0", 7, QuantType.Q8_0),
        Mixture("Q4_K_S", 14, QuantType.Q4_K),
        Mixture("Q4_K_M", 15, QuantType.Q4_K),
        Mixture("Q5_K_S", 16, QuantType.Q5_K),
        Mixture("Q5_K_M", 17, QuantType.Q5_K),
        Mixture("Q6_K", 18, QuantType.Q6_K),
    )
}


def find_mixture(name: str) -> Mixture:
    """Return the mixture with this name, ignoring case. Q4_K and Q5_K mean Q4_K_M and Q5_K_M.

    Raises OptionError for an unknown name.
    """
    wanted = name.upper()
    wanted += "_M" if wanted in ("Q4_K", "Q5_K") else ""
    if wanted not in MIXTURES:
        raise OptionError(f"type {name!r:.40} is not known; choose one of {', '.join(MIXTURES)}")
    return MIXTURES[wanted]


class _Chooser:
    """Chooses types by the rule at the top of the file."""

    def __init__(self, mixture: Mixture, names: Iterable[str], sizes: Sizes) -> None:
        self._base, self._name, self._sizes = mixture.base, mixture.name, sizes
        names = list(names)
        self._output = "output.weight" if "output.weight" in names else "token_embd.weight"
        values = sorted((name for name in names if _LAYER.match(name) and _is_value(name)), key=_layer)
        self._value_rank = {name: rank for rank, name in enumerate(values)}

    def choose(self, name: str, shape: tuple[int, ...]) -> QuantType:
        if len(shape) == 1 or not name.endswith(".weight") or _SMALL.search(name):
            return QuantType.F32
        if self._base in _PLAIN:
            return self._base
        return _fitting(self._quantized(name), shape[-1])

    def _quantized(self, name: str) -> QuantType:
        if name.startswith("mm."):
            return QuantType.F16
        if name.startswith("v."):
            return QuantType.Q8_0
        if name == self._output:
            return QuantType.Q8_0 if self._base is QuantType.Q8_0 else QuantType.Q6_K
        if _LAYER.match(name) is None:
            return self._base
        if _is_value(name):
            return self._value(name)
        if "attn_k.weight" in name and self._sizes.num_experts == 8:
            return QuantType.Q8_0
        if "ffn_down" in name:
            return self._with_more_bits(_layer(name), self._sizes.num_layers, self._sizes.num_layers // 8)
        if "attn_output" in name and self._sizes.num_experts == 8 and self._base is QuantType.Q4_K:
            return QuantType.Q5_K
        return self._base

    def _value(self, name: str) -> QuantType:
        if self._sizes.num_experts == 8:
            return QuantType.Q8_0
        type = self._with_more_bits(self._value_rank[name], len(self._value_rank), 4)
        if type is QuantType.Q4_K and self._sizes.shares_values:
            return QuantType.Q5_K
        return type

    def _with_more_bits(self, index: int, count: int, first: int) -> QuantType:
        """Return the type of sensitive matrix `index` of `count`. In Q4_K_S the first `first` get Q5_K."""
        if self._name.endswith("_M") and _is_sensitive(index, count):
            return QuantType.Q6_K
        if self._name == "Q4_K_S" and index < first:
            return QuantType.Q5_K
        return self._base


def _is_value(name: str) -> bool:
    return "attn_v.weight" in name or "attn_qkv.weight" in name


def _layer(name: str) -> int:
    """Return the layer number in a tensor's name, which must match."""
    match = _LAYER.match(name)
    assert match is not None, name
    return int(match[1])


def _is_sensitive(index: int, count: int) -> bool:
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _fitting(type: QuantType, columns: int) -> QuantType:
    for choice in (type, _SMALLER_BLOCKS.get(type, type)):
        if columns % choice.block_size == 0:
            return choice
    return QuantType.F16
