"""A backend that computes elsewhere, to prove that no code above `chaski.ml` depends on the place.

Importing this package registers three names: `foreign` has masks by pages of 16 cells; `foreign-dense` has
masks as matrices, transposed values and padded cells; `foreign-split` has several devices, each with its own
memory.
"""

from chaski.ml import BACKENDS

__all__ = ["NAMES", "SPLIT"]

_MODULES = {"foreign": "tests.foreign.paged", "foreign-dense": "tests.foreign.dense"}
SPLIT = "foreign-split"
BACKENDS |= {**_MODULES, SPLIT: "tests.foreign.split"}
NAMES = list(_MODULES)
