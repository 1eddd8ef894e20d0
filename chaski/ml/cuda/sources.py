"""The sources of the kernels: files of the folder `kernels`, and headers of the native core."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from chaski.ml.cuda.device import Program

__all__ = ["KERNELS", "OPTIONS", "digest_of", "headers", "native_headers", "text_of"]

KERNELS = Path(__file__).parent / "kernels"

OPTIONS = ("-std=c++20", "--fmad=false", "-default-device", "-DCHASKI_CUDA", "-DCHASKI_ISA=cuda")
"""Options of the runtime compiler: do not contract multiply-adds, and compile functions for the device."""

_SHARED = (
    "block.h",
    "blocks.h",
    "codebook.h",
    "codebook_blocks.h",
    "codebook_lookup.h",
    "codebooks.h",
    "formulas.h",
    "hadamard.h",
    "k_blocks.h",
    "matmul.h",
    "panel.h",
    "simd.h",
    "simd_cuda.h",
    "vector_math.h",
)


def native_headers() -> Path:
    """Return the folder of the native core's headers: next to the kernels in a wheel, else in the sources."""
    installed = KERNELS / "native"
    return installed if installed.exists() else Path(__file__).parents[3] / "native" / "include"


@cache
def headers() -> Mapping[str, str]:
    """Return the text of every header that kernels include, by its name."""
    own = {path.name: path.read_text() for path in sorted(KERNELS.glob("*.h"))}
    standard = {path.name: path.read_text() for path in sorted((KERNELS / "std").iterdir())}
    return own | standard | {name: (native_headers() / name).read_text() for name in _SHARED}


@cache
def text_of(file: str) -> str:
    """Return the text of a file of kernels."""
    return (KERNELS / f"{file}.cu").read_text()


def digest_of(program: Program, *parts: str) -> str:
    """Return a digest of a program's sources. `parts` are the other inputs of its compilation."""
    texts = (repr(program), text_of(program.file), *headers().values(), *OPTIONS, *parts)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]
