"""The GPUs of tests: always the emulated one, and a real one if CHASKI_TEST_GPU is set."""

from __future__ import annotations

import os

from tests.cuda.emulated import NAME

__all__ = ["BACKENDS", "is_real"]

BACKENDS = [NAME, *(["cuda"] if os.environ.get("CHASKI_TEST_GPU") else [])]


def is_real(backend: str) -> bool:
    """Return whether a backend computes on a real GPU."""
    return backend != NAME
