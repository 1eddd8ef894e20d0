"""The GPUs of tests: always the emulated one, and a real one if CHASKI_TEST_GPU is set."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from chaski.ml.cuda.plan import CUDAPlan
from tests.cuda.emulated import NAME

__all__ = ["BACKENDS", "is_real", "launched_kernels"]

BACKENDS = [NAME, *(["cuda"] if os.environ.get("CHASKI_TEST_GPU") else [])]


def is_real(backend: str) -> bool:
    """Return whether a backend computes on a real GPU."""
    return backend != NAME


def launched_kernels(plan: Any) -> list[str]:
    """Return the kernels that an emulated GPU has launched, and check that constants are what they were.

    Counters of arrivals are constants too. Other backends have no kernels.
    """
    if not isinstance(plan, CUDAPlan):
        return []
    for constant in plan._constants:
        content = ctypes.string_at(plan._address_of(constant), constant.array.nbytes)
        assert content == constant.array.tobytes()
    gpu: Any = plan._gpu
    names: list[str] = gpu.launched
    return names
