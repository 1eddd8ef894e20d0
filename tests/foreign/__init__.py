"""A backend that computes elsewhere, to prove that nothing above `chaski.ml` knows where that is.

Importing this makes it known by two names: `foreign`, whose masks are by pages of 16 cells, and
`foreign-dense`, whose masks are matrices, with values transposed and cells padded.
"""

from chaski.ml import BACKENDS

__all__ = ["NAMES"]

_MODULES = {"foreign": "tests.foreign.paged", "foreign-dense": "tests.foreign.dense"}
BACKENDS |= _MODULES
NAMES = list(_MODULES)
