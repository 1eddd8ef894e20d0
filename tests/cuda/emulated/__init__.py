"""A GPU that computes on the host: the kernels' own source, in blocks of fibers (fibers.h).

`emulated_gpu()` has what a plan needs of a device. Memory is the host's, filled with NaNs when it is taken.
Importing this makes the backend known as `cuda-emulated`.
"""

from __future__ import annotations

from pathlib import Path

from chaski.ml import BACKENDS

__all__ = ["NAME", "STARTUP"]

NAME = "cuda-emulated"
STARTUP = str(Path(__file__).parent / "startup")
"""The folder that makes it known to a process that has it, and the folder of `tests`, in PYTHONPATH."""
BACKENDS[NAME] = "tests.cuda.emulated.backend"
