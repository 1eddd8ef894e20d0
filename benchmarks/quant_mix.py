"""The types of a file's matrices, by the mixes of llama.cpp's quantizer.

With tied embeddings the token table has the type of an output matrix, Q4_K_M gives some layers Q6_K, and a
row length that a type cannot hold falls back to a type that can. MXFP4 is for the matrices of experts, next
to Q8_0. In a shape without experts, all matrices have MXFP4, unlike in any real file.
"""

from __future__ import annotations

from benchmarks.shapes import Matrix, Shape
from chaski.formats.quant import QuantType

__all__ = ["TYPES", "type_of"]

_T = QuantType

# File type name: the general.file_type number, and the type of the matrices.
TYPES = {
    "F32": (0, _T.F32),
    "F16": (1, _T.F16),
    "BF16": (32, _T.BF16),
    "Q4_0": (2, _T.Q4_0),
    "Q4_1": (3, _T.Q4_1),
    "Q5_0": (8, _T.Q5_0),
    "Q5_1": (9, _T.Q5_1),
    "Q8_0": (7, _T.Q8_0),
    "Q2_K": (10, _T.Q2_K),
    "Q3_K": (11, _T.Q3_K),
    "Q4_K": (14, _T.Q4_K),
    "Q4_K_M": (15, _T.Q4_K),
    "Q5_K": (16, _T.Q5_K),
    "Q6_K": (18, _T.Q6_K),
    "IQ4_NL": (25, _T.IQ4_NL),
    "IQ4_XS": (30, _T.IQ4_XS),
    "MXFP4": (38, _T.MXFP4),
    "IQ1_S": (24, _T.IQ1_S),
    "IQ1_M": (31, _T.IQ1_M),
    "IQ2_XXS": (19, _T.IQ2_XXS),
    "IQ2_XS": (20, _T.IQ2_XS),
    "IQ2_S": (28, _T.IQ2_S),
    "IQ3_XXS": (23, _T.IQ3_XXS),
    "IQ3_S": (26, _T.IQ3_S),
    "TQ1_0": (36, _T.TQ1_0),
    "TQ2_0": (37, _T.TQ2_0),
    "NVFP4": (39, _T.NVFP4),
    "Q1_0": (40, _T.Q1_0),
    "Q2_0": (41, _T.Q2_0),
}

# The types that replace a type whose blocks of 256 do not divide a row.
_FALLBACK = {
    _T.Q2_K: _T.Q4_0,
    _T.Q3_K: _T.Q4_0,
    _T.Q4_K: _T.Q5_0,
    _T.Q5_K: _T.Q5_1,
    _T.Q6_K: _T.Q8_0,
    _T.IQ4_XS: _T.IQ4_NL,
    **dict.fromkeys((_T.TQ1_0, _T.TQ2_0), _T.Q4_0),
    **dict.fromkeys((_T.IQ1_S, _T.IQ1_M, _T.IQ2_XXS, _T.IQ2_XS, _T.IQ2_S, _T.IQ3_XXS, _T.IQ3_S), _T.IQ4_NL),
}

_OWN_OUTPUT = (_T.F32, _T.F16, _T.BF16, _T.Q8_0)  # types that the output matrix shares with the rest

_NOT_QUANTIZED = ("per_layer_model_proj",)  # the quantizer keeps the converter's type


def type_of(matrix: Matrix, type_name: str, shape: Shape) -> QuantType:
    """Return the type of the matrix in a file of type `type_name`."""
    kind = TYPES[type_name][1]
    if matrix.is_head:
        kind = _output_type(kind)
    elif matrix.name in _NOT_QUANTIZED:
        kind = _T.BF16
    elif type_name == "Q4_K_M":
        kind = _q4_k_m(matrix, shape.num_layers)
    elif type_name == "IQ4_XS":
        kind = _iq4_xs(matrix, shape)
    elif kind is _T.MXFP4 and _has_experts(shape) and not matrix.experts:
        kind = _T.Q8_0
    return kind if matrix.columns % kind.block_size == 0 else _FALLBACK[kind]


def _has_experts(shape: Shape) -> bool:
    return any(matrix.experts for matrix in shape.matrices())


def _output_type(kind: QuantType) -> QuantType:
    if kind in _OWN_OUTPUT:
        return kind
    return _T.Q8_0 if kind is _T.MXFP4 else _T.Q6_K


def _q4_k_m(matrix: Matrix, num_layers: int) -> QuantType:
    part = _part(matrix)
    if part == "attn_qkv":
        return _T.Q5_K
    has_more = part in ("attn_v", "ffn_down") and _gets_more_bits(matrix.layer, num_layers)
    return _T.Q6_K if has_more else _T.Q4_K


def _gets_more_bits(layer: int, num_layers: int) -> bool:
    """Return whether Q4_K_M favours the layer: the first and last eighth, and every third layer between."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _iq4_xs(matrix: Matrix, shape: Shape) -> QuantType:
    part = _part(matrix)
    has_more = (part == "attn_v" and shape.heads_per_kv_head >= 4) or (
        part == "ffn_down" and matrix.layer < shape.num_layers // 8
    )
    return _T.Q5_K if has_more else _T.IQ4_XS


def _part(matrix: Matrix) -> str:
    """Return the name of the matrix within its layer, without the mark of experts."""
    return matrix.name.rpartition(".")[2].removesuffix("_exps").removesuffix("_shexp")
