"""Memory that several plans of a device share, because only one of them computes at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chaski.ml.cuda.device import GPU

__all__ = ["Workspace"]


class Workspace:
    """Memory for plans whose results are read before another one of them runs: see `Graph.is_passing`.

    `bytes` is the memory on the device; the host has a landing for the largest result.
    """

    def __init__(self, gpu: GPU) -> None:
        self._gpu = gpu
        self.bytes = 0
        self.address = 0
        self._landing_bytes = 0
        self._landing: npt.NDArray[np.uint8] | None = None

    def reserve(self, num_bytes: int, landing_bytes: int) -> bool:
        """Make room for a plan -> whether it has room. Once memory is taken, it does not grow."""
        if self.address:
            return num_bytes <= self.bytes and landing_bytes <= self._landing_bytes
        self.bytes = max(self.bytes, num_bytes)
        self._landing_bytes = max(self._landing_bytes, landing_bytes)
        return True

    def take(self) -> None:
        """Allocate the memory unless that has happened."""
        if not self.address and self.bytes:
            self.address = self._gpu.allocate(self.bytes)

    def landing(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Return host memory for a result, which the next result of any of the plans overwrites."""
        if self._landing is None:
            self._landing = self._gpu.staging(self._landing_bytes)
        return self._landing[:num_bytes]

    def release(self) -> None:
        """Free the memory."""
        if self.address:
            self._gpu.free(self.address)
            self.address = 0
        self._landing = None
