"""`python -m tests.simulation --seeds 0:1000` runs simulated worlds."""

from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # The order of sets must be the same in every process.
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})

import tests.simulation.install  # isort: skip  # noqa: F401
from tests.simulation.command import main

if __name__ == "__main__":
    raise SystemExit(main())
