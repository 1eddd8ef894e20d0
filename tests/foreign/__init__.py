"""A backend that computes elsewhere, to prove that nothing above `chaski.ml` knows where that is.

Importing this makes it known by three names: `foreign`, whose masks are by pages of 16 cells, and
`foreign-dense`, whose masks are matrices, with values transposed and cells padded. `foreign-split` has
several devices, each with memory of its own.
"""

from chaski.ml import BACKENDS

__all__ = ["NAMES", "SPLIT"]

_MODULES = {"foreign": "tests.foreign.paged", "foreign-dense": "tests.foreign.dense"}
SPLIT = "foreign-split"
BACKENDS |= {**_MODULES, SPLIT: "tests.foreign.split"}
NAMES = list(_MODULES)
