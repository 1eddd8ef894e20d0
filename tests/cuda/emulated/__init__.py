"""A GPU that computes on the host: it runs the kernels' own source in blocks of fibers (fibers.h).

`emulated_gpu()` provides a device for plans. Memory is the host's, filled with NaNs on allocation. Importing
this package registers the backend `cuda-emulated`.
"""

from __future__ import annotations

from pathlib import Path

from chaski.ml import BACKENDS

__all__ = ["NAME", "STARTUP"]

NAME = "cuda-emulated"
STARTUP = str(Path(__file__).parent / "startup")
"""The folder that registers it in a process, if PYTHONPATH contains it and the folder of `tests`."""
BACKENDS[NAME] = "tests.cuda.emulated.backend"
