"""A GPU that computes on the host: the kernels' own source, in blocks of fibers (fibers.h).

`emulated_gpu()` has what a plan needs of a device. Memory is the host's, filled with NaNs when it is taken.
Importing this makes the backend known as `cuda-emulated`.
"""

from __future__ import annotations

from chaski.ml import BACKENDS

__all__ = ["NAME"]

NAME = "cuda-emulated"
BACKENDS[NAME] = "tests.cuda.emulated.backend"
