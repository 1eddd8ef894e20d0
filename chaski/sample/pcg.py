"""The random numbers of a seeded sampler: PCG with the DXSM output function, as in Go's math/rand/v2.

The same seed gives the same numbers as the Go engine that Ollama shipped. NumPy's PCG64DXSM is another
generator (a 64-bit multiplier, output before the step) and takes 20 microseconds to make.
Algorithm: M. E. O'Neill 2014, "PCG: A Family of Simple Fast Space-Efficient Statistically Good Algorithms for
Random Number Generation", and pcg-cpp for DXSM.
"""

from __future__ import annotations

from collections import deque

__all__ = ["Pcg"]

_MASK_64 = 2**64 - 1
_MASK_128 = 2**128 - 1
_MULTIPLIER = 0x2360ED051FC65DA44385DF649FCCF645
_INCREMENT = 0x5851F42D4C957F2D14057B7EF767814F
_OUTPUT_MULTIPLIER = 0xDA942042E4DD58B5
_STREAM = 0x9E3779B9


class Pcg:
    """One stream of random numbers; `first` and `second` are 64-bit seeds."""

    def __init__(self, first: int, second: int) -> None:
        self._state = first << 64 | second
        self._told: deque[int] = deque()  # numbers of `next_24` that `later_24` has computed

    def __copy__(self) -> Pcg:
        found = type(self).__new__(type(self))
        found.__dict__.update(self.__dict__)
        found._told = self._told.copy()
        return found

    @classmethod
    def from_seed(cls, seed: int) -> Pcg:
        """The stream that belongs to one 64-bit seed."""
        return cls(seed, seed ^ _STREAM)

    def next_64(self) -> int:
        """A number below 2**64. Call this before any `later_24`."""
        self._state = (self._state * _MULTIPLIER + _INCREMENT) & _MASK_128
        high, low = self._state >> 64, self._state & _MASK_64
        high ^= high >> 32
        high = high * _OUTPUT_MULTIPLIER & _MASK_64
        high ^= high >> 48
        return high * (low | 1) & _MASK_64

    def next_24(self) -> int:
        """A number below 2**24; Go's Float32 is this number divided by 2**24."""
        return self._told.popleft() if self._told else self.next_64() >> 32 & 0xFFFFFF

    def later_24(self, place: int) -> int:
        """The number that `next_24` returns after `place` others, which stay to come."""
        while len(self._told) <= place:
            self._told.append(self.next_64() >> 32 & 0xFFFFFF)
        return self._told[place]
