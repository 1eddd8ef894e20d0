"""The tensor types in each mixture that `--type` accepts: the choices of llama.cpp's quantizer.

A mixture such as Q4_K_M has a base type, which most matrices get. The functions below give other types to the
matrices that suffer most from few bits:

* the output matrix, or the embedding that serves as one;
* `attn_v` and its kin, which are small and sensitive, and `ffn_down`, in all or in some layers;
* `attn_output`, in the mixtures of two and three bits;
* `attn_k` and `attn_v` of models with exactly eight experts, where they are tiny.

Vectors, norms, routers, positions and other small tensors stay as they are. A row that cannot be split into
blocks of 256 gets the type of nearest size with blocks of 32, and F16 if that does not fit either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from chaski.errors import OptionError
from chaski.formats.quant import QuantType as Q

__all__ = ["MIXTURES", "PLAIN", "Mixture", "Sizes", "Wishes", "find_mixture", "find_type", "fitting", "stays"]

_LAYER = re.compile(r"blk\.(\d+)\.")
_STAYS = re.compile(
    r"_norm\.weight$|ffn_gate_inp\.weight|ffn_gate_tid2eid\.weight|altup|laurel|per_layer_model_proj"
    r"|^position_embd|^token_types|ssm_conv1d|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight"
    r"|time_mix_(first|w[012]|v[012]|a[012]|g[12]|decay_w[12]|lerp_fused)\.weight|attn_rel_b\.weight"
    r"|\.position_embd|sam\.(pos_embd|neck\.|net_)|\.rel_pos|\.patch_embd|\.patch_merger"
    r"|a\.rvq\.codebook|mm\.a\.code_embd"
)
_GLM5_STAYS = re.compile(
    r"hc_|indexer\.(attn_q_b|attn_k|proj)|indexer_compressor_(gate|ape)|ssm_([fg]_[ab]|beta)\.weight"
    r"|attn_(kv_a_mqa|k_b|v_b)\.weight"
)
_GLM5_PRECISE = re.compile(r"attn_q_[ab]|nextn\.eh_proj")
# Encoders of images and sound and what joins them to the text: small, and they suffer from fewer bits.
_ENCODERS = ("v.", "a.", "mm.")
_SMALLER_BLOCKS = {
    **dict.fromkeys((Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS, Q.IQ3_S, Q.IQ4_XS), Q.IQ4_NL),
    **dict.fromkeys((Q.Q2_K, Q.Q3_K, Q.TQ1_0, Q.TQ2_0, Q.Q2_0, Q.Q1_0, Q.NVFP4), Q.Q4_0),
    Q.Q4_K: Q.Q5_0,
    Q.Q5_K: Q.Q5_1,
    Q.Q6_K: Q.Q8_0,
}
_LAYERS_OF_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}
PLAIN = (Q.F32, Q.F16, Q.BF16)
_NEEDS_IMPORTANCE = (Q.IQ1_S, Q.IQ1_M, Q.IQ2_XXS, Q.IQ2_XS, Q.IQ2_S, Q.IQ3_XXS)
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")


class Sizes(Struct, frozen=True):
    """The properties of a model that a choice depends on, in addition to names and shapes.

    num_layers: with blocks for multi-token prediction. num_groups: query heads per key and value head, or 0.
    is_70b: a model of the size class 70B, whose attn_v is an eighth of attn_q.
    """

    num_layers: int
    num_experts: int = 0
    num_groups: int = 1
    is_70b: bool = False
    architecture: str = ""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Sizes:
        """Read the properties from the metadata of a GGUF file."""
        architecture = metadata.get("general.architecture", "")

        def number(key: str, default: int = 0) -> int:
            value = metadata.get(f"{architecture}.{key}", default)
            value = value if isinstance(value, int) else next(iter(value), default)  # of the first layer
            return int(value)

        layers, heads = number("block_count"), number("attention.head_count")
        kv_heads = number("attention.head_count_kv", heads)
        is_70b = _LAYERS_OF_70B.get(architecture) == layers and not (
            architecture == "llama" and heads == kv_heads
        )
        return cls(layers, number("expert_count"), heads // kv_heads if kv_heads else 0, is_70b, architecture)


class Wishes(Struct, frozen=True):
    """Types that the user chose, which come before those of a mixture.

    output: of the output matrix. embedding: of the embeddings of tokens. tensors: of tensors whose names
    contain a match of a regular expression; the first match decides. is_pure: whether all others get the base
    type. has_importance: whether an importance matrix is used, which some choices depend on.
    """

    output: Q | None = None
    embedding: Q | None = None
    tensors: tuple[tuple[re.Pattern[str], Q], ...] = ()
    is_pure: bool = False
    has_importance: bool = False

    def of_name(self, name: str) -> Q | None:
        """Return the type that a pattern gives this tensor."""
        return next((type for pattern, type in self.tensors if pattern.search(name)), None)


_NO_WISHES = Wishes()


class Mixture(Struct, frozen=True):
    """A choice of types. number: its value of `general.file_type`."""

    name: str
    number: int
    base: Q

    def choose(
        self, shapes: Mapping[str, tuple[int, ...]], sizes: Sizes, wishes: Wishes = _NO_WISHES
    ) -> dict[str, Q]:
        """Return the types of the tensors that do not stay as they are."""
        names = [name for name in shapes if not stays(name, shapes[name], sizes.architecture)]
        chooser = _Chooser(self, sizes, wishes, names)
        return {name: chooser.choose(name, shapes[name]) for name in sorted(names, key=_place)}

    def needs_importance(self, name: str, type: Q) -> bool:
        """Return whether a tensor would be useless in this type without an importance matrix."""
        if name == "output.weight" or name in _EMBEDDINGS:
            return False
        return type in _NEEDS_IMPORTANCE or (type is Q.Q2_K and self.name == "Q2_K_S")


MIXTURES = {
    mixture.name: mixture
    for mixture in (
        Mixture("F32", 0, Q.F32),
        Mixture("F16", 1, Q.F16),
        Mixture("BF16", 32, Q.BF16),
        Mixture("Q8_0", 7, Q.Q8_0),
        Mixture("Q6_K", 18, Q.Q6_K),
        Mixture("Q5_K_M", 17, Q.Q5_K),
        Mixture("Q5_K_S", 16, Q.Q5_K),
        Mixture("Q5_1", 9, Q.Q5_1),
        Mixture("Q5_0", 8, Q.Q5_0),
        Mixture("Q4_K_M", 15, Q.Q4_K),
        Mixture("Q4_K_S", 14, Q.Q4_K),
        Mixture("Q4_1", 3, Q.Q4_1),
        Mixture("Q4_0", 2, Q.Q4_0),
        Mixture("IQ4_NL", 25, Q.IQ4_NL),
        Mixture("IQ4_XS", 30, Q.IQ4_XS),
        Mixture("Q3_K_L", 13, Q.Q3_K),
        Mixture("Q3_K_M", 12, Q.Q3_K),
        Mixture("Q3_K_S", 11, Q.Q3_K),
        Mixture("Q2_K", 10, Q.Q2_K),
        Mixture("Q2_K_S", 21, Q.Q2_K),
        Mixture("IQ3_M", 27, Q.IQ3_S),
        Mixture("IQ3_S", 26, Q.IQ3_S),
        Mixture("IQ3_XS", 22, Q.IQ3_S),
        Mixture("IQ3_XXS", 23, Q.IQ3_XXS),
        Mixture("IQ2_M", 29, Q.IQ2_S),
        Mixture("IQ2_S", 28, Q.IQ2_XS),
        Mixture("IQ2_XS", 20, Q.IQ2_XS),
        Mixture("IQ2_XXS", 19, Q.IQ2_XXS),
        Mixture("IQ1_M", 31, Q.IQ1_M),
        Mixture("IQ1_S", 24, Q.IQ1_S),
        Mixture("TQ2_0", 37, Q.TQ2_0),
        Mixture("TQ1_0", 36, Q.TQ1_0),
        Mixture("NVFP4", 39, Q.NVFP4),
        Mixture("Q2_0", 41, Q.Q2_0),
        Mixture("Q1_0", 40, Q.Q1_0),
    )
}
_ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}


def find_mixture(name: str) -> Mixture:
    """Return the mixture with this name, ignoring case. Q3_K, Q4_K and Q5_K mean those with `_M`.

    Raises OptionError for an unknown name.
    """
    wanted = name.upper()
    wanted = _ALIASES.get(wanted, wanted)
    if wanted not in MIXTURES:
        raise OptionError(f"type {name!r:.40} is not known; choose one of {', '.join(MIXTURES)}")
    return MIXTURES[wanted]


def find_type(name: str) -> Q:
    """Return the tensor type with this name, ignoring case. Raises OptionError for an unknown one."""
    from chaski.formats.quantize import QUANTIZABLE

    known = {type.name: type for type in QUANTIZABLE}
    if name.upper() not in known:
        raise OptionError(f"tensor type {name!r:.40} is not known; choose one of {', '.join(known)}")
    return known[name.upper()]


def stays(name: str, shape: tuple[int, ...], architecture: str = "") -> bool:
    """Return whether a tensor keeps its type in every mixture."""
    if not name.endswith("weight") or name.startswith(_ENCODERS) or _STAYS.search(name):
        return True
    if architecture == "glm5-next" and _GLM5_STAYS.search(name):
        return True
    return sum(size > 1 for size in shape[:-1]) == 0


class _Chooser:
    """Chooses the types of tensors, one after the other in the order of their layers."""

    def __init__(self, mixture: Mixture, sizes: Sizes, wishes: Wishes, names: list[str]) -> None:
        self._mixture, self._name, self._base = mixture, mixture.name, mixture.base
        self._sizes, self._wishes = sizes, wishes
        self._has_output = "output.weight" in names
        self._has_eight_experts = sizes.num_experts == 8
        self._values = self._downs = self._gates = self._ups = 0
        self._num_values = sum(map(_is_value, names))

    def choose(self, name: str, shape: tuple[int, ...]) -> Q:
        wishes = self._wishes
        by_name = wishes.of_name(name)
        is_embedding = name == "token_embd.weight" or (name in _EMBEDDINGS and by_name is None)
        if is_embedding and wishes.embedding is not None:
            return wishes.embedding
        if name == "output.weight" and wishes.output is not None:
            return wishes.output
        if self._base in PLAIN:
            return self._base
        type = by_name or (self._base if wishes.is_pure else self._of_mixture(name, shape[-1]))
        return fitting(type, shape[-1])

    def _of_mixture(self, name: str, columns: int) -> Q:
        if self._sizes.architecture == "glm5-next" and _GLM5_PRECISE.search(name):
            return Q.Q8_0
        if name == "output.weight" or (name in _EMBEDDINGS and not self._has_output):
            return self._output(columns)
        if name in _EMBEDDINGS:
            return _EMBEDDING_TYPES.get(self._name, self._base)
        if self._name in _TWO_BITS:
            return self._of_two_bits(name)
        if _is_value(name):
            return self._value()
        for part, choose in (
            ("attn_k.weight", self._key),
            ("attn_q.weight", self._query),
            ("attn_output.weight", self._attention_output),
            ("ffn_up", self._up),
            ("ffn_gate", self._gate),
            ("ffn_down", self._down),
        ):
            if part in name:
                return choose(name)
        return self._base

    def _output(self, columns: int) -> Q:
        if self._wishes.output is not None:
            return self._wishes.output
        if self._sizes.architecture == "falcon" or columns % self._base.block_size:
            return Q.Q8_0
        if self._name in (*_TWO_BITS, "IQ3_XXS"):
            return Q.Q5_K
        return Q.Q8_0 if self._base is Q.Q8_0 else Q.Q6_K

    def _of_two_bits(self, name: str) -> Q:
        """The mixtures around IQ2 and below, which only the most sensitive matrices leave."""
        better = Q.IQ3_S if self._name in ("IQ2_S", "IQ2_M") else Q.Q2_K
        if _is_value(name):
            return Q.Q4_K if self._sizes.num_groups >= 4 or self._sizes.num_experts >= 4 else better
        if "attn_k.weight" in name and self._has_eight_experts:
            return Q.Q4_K
        if "ffn_down" in name:
            self._downs += 1
            return better if self._downs - 1 < self._sizes.num_layers // 8 else self._base
        if "attn_output.weight" in name:
            if self._has_eight_experts:
                return Q.Q5_K
            return {"IQ1_S": Q.IQ2_XXS, "IQ1_M": Q.IQ2_XXS, "IQ2_S": Q.IQ3_S, "IQ2_M": Q.IQ3_S}.get(
                self._name, self._base
            )
        return self._base

    def _value(self) -> Q:
        index = self._values
        self._values += 1
        if self._has_eight_experts:
            return Q.Q8_0
        type = self._value_of(index)
        return Q.Q5_K if self._sizes.is_70b and type in (Q.Q3_K, Q.Q4_K) else type

    def _value_of(self, index: int) -> Q:
        is_grouped = self._sizes.num_groups >= 4
        match self._name:
            case "Q2_K":
                return Q.Q4_K if is_grouped else Q.Q3_K
            case "Q2_K_S" | "IQ3_XS" | "IQ3_S" if is_grouped:
                return Q.Q4_K
            case "IQ3_XXS":
                return Q.Q4_K if is_grouped else self._base if self._wishes.has_importance else Q.IQ3_S
            case "IQ3_M":
                return Q.Q4_K
            case "Q3_K_M":
                return Q.Q5_K if index < 2 else Q.Q4_K
            case "Q3_K_L":
                return Q.Q5_K
            case "IQ4_NL" | "IQ4_XS" if is_grouped:
                return Q.Q5_K
            case "Q4_K_M" | "Q5_K_M" if _is_sensitive(index, self._num_values):
                return Q.Q6_K
            case "Q4_K_S" if index < 4:
                return Q.Q5_K
        return self._base

    def _key(self, name: str) -> Q:
        return Q.Q8_0 if self._has_eight_experts else self._query(name)

    def _query(self, name: str) -> Q:
        return {"IQ3_XS": Q.IQ3_XXS, "IQ3_XXS": Q.IQ2_S}.get(self._name, self._base)

    def _attention_output(self, name: str) -> Q:
        if self._sizes.architecture == "falcon":
            return Q.Q4_K if self._name == "Q3_K_L" else self._base
        if self._has_eight_experts:
            return Q.Q5_K if self._name in _FIVE_BITS_FOR_EIGHT else self._base
        return _ATTENTION_OUTPUTS.get(self._name, self._base)

    def _up(self, name: str) -> Q:
        self._ups += 1
        return self._middle(self._layer(name, self._ups - 1))

    def _gate(self, name: str) -> Q:
        self._gates += 1
        return self._middle(self._layer(name, self._gates - 1))

    def _middle(self, layer: int) -> Q:
        eighth, last = self._sizes.num_layers // 8, 7 * self._sizes.num_layers // 8
        return Q.IQ3_XXS if self._name == "IQ3_XS" and eighth <= layer < last else self._base

    def _down(self, name: str) -> Q:
        count = self._sizes.num_layers
        layer = self._layer(name, self._downs)
        self._downs += 1
        is_first, is_falcon = layer < count // 8, self._sizes.architecture == "falcon"
        is_sensitive, is_informed = _is_sensitive(layer, count), self._wishes.has_importance
        match self._name:
            case "Q2_K":
                return Q.Q3_K
            case "Q2_K_S" if is_first:
                return Q.Q4_K
            case "IQ3_XXS" if not is_informed:
                return Q.Q4_K if is_first else Q.Q3_K
            case "Q3_K_M" if layer < count // 16:
                return Q.Q5_K
            case "Q3_K_M" if is_sensitive or not is_falcon:
                return Q.Q4_K
            case "IQ3_M" if is_first or (self._has_eight_experts and is_sensitive):
                return Q.Q4_K
            case "Q3_K_L":
                return Q.Q4_K if is_falcon else Q.Q5_K
            case "Q4_K_M" if is_falcon:
                return Q.Q6_K if layer < count // 16 else Q.Q5_K if is_sensitive else Q.Q4_K
            case "Q4_K_M" | "Q5_K_M" if is_sensitive:
                return Q.Q6_K
            case "IQ4_NL" | "IQ4_XS" if is_first and not is_informed:
                return Q.Q5_K
            case "Q4_K_S" if is_first and not is_falcon:
                return Q.Q5_K
            case "Q4_0" | "Q5_0" if is_first and is_informed:
                return Q.Q4_1 if self._name == "Q4_0" else Q.Q5_1
        return self._base

    def _layer(self, name: str, index: int) -> int:
        """The layer of a tensor; of models without experts, its number among its kind."""
        match = _LAYER.match(name)
        return int(match[1]) if match and self._sizes.num_experts > 1 else index


_TWO_BITS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_EMBEDDING_TYPES = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"), Q.Q2_K),
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), Q.IQ3_S),
    **dict.fromkeys(("TQ1_0", "TQ2_0", "Q2_0"), Q.Q4_K),
}
_ATTENTION_OUTPUTS = {
    "Q2_K": Q.Q3_K,
    "IQ3_XXS": Q.IQ3_S,
    "Q3_K_M": Q.Q4_K,
    "Q3_K_L": Q.Q5_K,
    "IQ3_M": Q.Q4_K,
}
_FIVE_BITS_FOR_EIGHT = (
    *("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL"),
    *("Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS"),
)


def _is_value(name: str) -> bool:
    return any(part in name for part in ("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"))


def _place(name: str) -> tuple[int, str]:
    match = _LAYER.match(name)
    return (int(match[1]) if match else -1, name)


def _is_sensitive(index: int, count: int) -> bool:
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def fitting(type: Q, columns: int) -> Q:
    """Return the type, or one that takes rows of so many columns."""
    for choice in (type, _SMALLER_BLOCKS.get(type, type)):
        if columns % choice.block_size == 0:
            return choice
    return Q.F16
