"""`general.file_type`: the numbers that GGUF files carry for mixtures of tensor types, and their names."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chaski.formats.gguf import GGUFFile

__all__ = ["FILE_TYPES", "file_type"]

# As llama.cpp numbers them.
FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    4: "MXFP4",  # Ollama's converters write it for gpt-oss; llama.cpp had given it up
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}


def file_type(file: GGUFFile) -> str:
    """The mixture that the file names, else the type of most of its bytes; `unknown` without tensors."""
    named = FILE_TYPES.get(file.get("general.file_type", int, -1))
    if named is not None or not file.tensors:
        return named or "unknown"
    sizes: Counter[str] = Counter()
    for tensor in file.tensors.values():
        sizes[tensor.type.name] += tensor.nbytes
    return sizes.most_common(1)[0][0]
