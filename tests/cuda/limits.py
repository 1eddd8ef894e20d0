"""Limits of the registers and spilled bytes of each kernel. test_programs.py checks them."""

from __future__ import annotations

from collections.abc import Mapping

from chaski.ml.cuda.device import Program

__all__ = ["limits_of"]

_SMALL = """
add_vector average_rows chunked_conv concat_columns dispatch embedding gaussian_top_k group_by_expert
hash_ngrams head_sums join_experts keep_chunked_inputs keep_delta_rows keep_inputs keep_pooled lora_down
matmul_float mix_streams move_cells multiply_vector product relative_dots rms rooted_dots rope rows
sample scale_by_expert scale_experts scale_heads scale_rows scatter slice space_to_depth token_numbers unpack
"""
_LIMITS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(_SMALL.split(), (40, 0)),
    "matmul_float sm_80": (48, 0),
    "quantize_rows": (48, 0),
    "combine": (56, 0),
    "elementwise": (56, 0),
    "lora_up": (56, 0),
    "top_k": (80, 0),
    "top_k_of_parts": (80, 0),
    "router": (64, 0),
    "hadamard": (64, 0),
    "sinkhorn": (64, 0),
    "pooling": (64, 0),
    "short_conv": (72, 0),
    "store": (72, 0),
    "rotate_cells": (80, 0),
    "matmul 1": (88, 0),
    "attention_chunk": (128, 0),
    "rms_norm": (64, 0),
    "layer_norm": (64, 60),
    "layer_norm sm_75": (64, 80),
    "attention": (128, 60),
    "entry_attention": (128, 60),
    "matmul_many 128": (128, 200),
    "gated_delta": (168, 0),
    "choose_cells": (128, 0),
    "ssd": (128, 0),
    "selective_scan": (80, 0),
    "generalized_delta": (80, 0),
    "matmul_super": (96, 24),
    "matmul_super_many 64": (128, 336),
    "matmul_super_many 32": (128, 48),
    "matmul 8": (224, 0),
    "matmul 8 sm_75": (255, 128),
}
"""Limits of a kernel's registers per thread and spilled bytes.

They are listed by name, or by name and tokens or architecture. Products of many tokens have 128 registers, so
that 16 warps fit. The numbers apply to the compiler that pyproject.toml names for developers."""


def limits_of(name: str, program: Program, architecture: str) -> tuple[int, int]:
    """Return the most registers of a thread, and the most bytes that it spills."""
    tokens = int(dict(program.defines).get("CHASKI_TOKENS", 0))
    few = f"{name} {1 if tokens == 1 else 8}"
    known = f"{name} {architecture}", f"{few} {architecture}", name, few, f"{name} {tokens}", f"{name} 128"
    registers, spilled = next(_LIMITS[each] for each in known if each in _LIMITS)
    # A multiprocessor of this architecture has 64 registers for each of its 1,024 threads.
    return max(registers, 64) if architecture == "sm_75" else registers, spilled
