"""The GPUs that tests run on: the emulated one always, a real one where CHASKI_TEST_GPU is set."""

from __future__ import annotations

import os

from tests.cuda.emulated import NAME

__all__ = ["BACKENDS", "is_real"]

BACKENDS = [NAME, *(["cuda"] if os.environ.get("CHASKI_TEST_GPU") else [])]


def is_real(backend: str) -> bool:
    """Whether a backend computes on a GPU."""
    return backend != NAME
