"""The named adapters of a model: read on demand, kept within a memory limit."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

from msgspec import Struct, field

from chaski.chat.adapter_choices import AdapterChoice
from chaski.errors import AdapterNotFoundError, OptionError, OutOfMemoryError
from chaski.formats.adapter import AdapterFile, open_adapter
from chaski.ml.backend import AdapterSlots, ByDevice, LoraMatrices, summed
from chaski.ml.machine import available_memory
from chaski.model.adapter import match_adapter
from chaski.model.program import Adapted
from chaski.model.registry import Model
from chaski.runner.adapters.applied import AppliedAdapters, Use

__all__ = ["NUM_SLOTS", "AdapterInfo", "AdapterSet"]

NUM_SLOTS = 256
"""The largest number of adapters in memory at a time."""

_LANES = 16  # ranks are rounded up to a multiple of this
# All adapters together may take this share of the memory that is free when the first adapter is loaded.
_SHARE = 0.25


class AdapterInfo(Struct, frozen=True, kw_only=True):
    """An adapter of a model. `is_used`: whether a running or waiting request uses it."""

    name: str
    path: str
    rank: int
    alpha: float
    num_bytes: int
    digest: str
    is_used: bool


class _Resident(Struct, eq=False, weakref=True):
    """An adapter in a slot. It is free again after the last reference to this. `width`: ranks, rounded up."""

    slot: int
    width: int
    users: weakref.WeakSet[AppliedAdapters] = field(default_factory=weakref.WeakSet)


class _Named(Struct, eq=False):
    """An adapter that has a name. `last_used` grows with every use."""

    path: Path
    rank: int
    alpha: float
    digest: str
    num_bytes: int
    last_used: int
    resident: _Resident | None

    @property
    def is_used(self) -> bool:
        return self.resident is not None and bool(self.resident.users)


class AdapterSet:
    """The adapters of a loaded model. Safe to use from several threads.

    `adapted` compiles the plan for up to a given number of adapters; it is called when the first adapter is
    loaded. Together the adapters take up to `max_bytes`, by default a quarter of the memory that is free at
    that time. If memory is short, the least recently used adapters are released; they are read again when a
    request names them.
    """

    def __init__(
        self,
        architecture: str,
        model: Model,
        adapted: Callable[[int], Adapted],
        max_bytes: int | None = None,
    ) -> None:
        self._architecture = architecture
        self._model = model
        self._compile = adapted
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self._named: dict[str, _Named] = {}
        self._free = list(range(NUM_SLOTS))
        self._sizes: dict[int, ByDevice] = {}  # bytes of each occupied slot
        self._uses = 0

    def load(self, name: str, path: str | Path) -> list[AdapterInfo]:
        """Load the adapter in a file under a name, replacing an earlier one of that name -> all adapters
        afterwards.

        Running requests keep the replaced adapter. Raises AdapterError, GGUFError, ModelNotFoundError,
        OptionError, UnsupportedError or OutOfMemoryError.
        """
        AdapterChoice(name)
        with self._lock:
            named = self._read(Path(path).absolute())
            self._named[name] = named
            return self.infos()

    def unload(self, name: str) -> list[AdapterInfo]:
        """Unload an adapter -> the remaining ones. Running requests that use it continue."""
        with self._lock:
            self._find(name)
            del self._named[name]
            return self.infos()

    def infos(self) -> list[AdapterInfo]:
        """Return all adapters in loading order."""
        with self._lock:
            return [
                AdapterInfo(
                    name=name,
                    path=str(named.path),
                    rank=named.rank,
                    alpha=named.alpha,
                    num_bytes=named.num_bytes,
                    digest=named.digest,
                    is_used=named.is_used,
                )
                for name, named in self._named.items()
            ]

    @property
    def num_bytes(self) -> int:
        """Bytes of all adapters in memory."""
        return sum(sum(sizes.values()) for sizes in list(self._sizes.values()))

    @property
    def held_bytes(self) -> ByDevice:
        """Return the bytes of all adapters in memory, and the bytes reserved for the next one."""
        return summed([*list(self._sizes.values()), self._slots.ready_bytes]) if self._uses else {}

    def size(self, path: str | Path) -> ByDevice:
        """Return the bytes that the adapter in a file would take. Raises the errors of `load` about files."""
        with self._lock, open_adapter(Path(path)) as adapter:
            numbers = self._adapted.numbers
            return self._slots.num_bytes(match_adapter(adapter, self._architecture, self._model, numbers))

    def apply(self, choices: Sequence[AdapterChoice]) -> AppliedAdapters | None:
        """Return the adapters of a request, or None for no adapters. They stay in memory as long as the
        result is referenced.

        Raises AdapterNotFoundError for an unknown name, OptionError if the ranks exceed those of a row, and
        the errors of `load` for an adapter that has to be read again.
        """
        if not choices:
            return None
        with self._lock:
            found = [(self._held(choice.name), choice.scale) for choice in choices]
            uses = tuple(Use(resident.slot, float(scale), resident) for (_, resident), scale in found)
            most = self._adapted.table.max_width
            if sum(resident.width for (_, resident), _ in found) > most:
                raise OptionError(
                    f"the adapters of a request have more than {most} ranks together; name fewer"
                )
            key = "+".join(f"{named.digest}*{float(scale).hex()}" for (named, _), scale in found)
            applied = AppliedAdapters(key, uses, tuple(named.digest for (named, _), _ in found))
            for (_, resident), _ in found:
                resident.users.add(applied)
            return applied

    @property
    def _adapted(self) -> Adapted:
        return self._compile(NUM_SLOTS)

    @property
    def _slots(self) -> AdapterSlots:
        return cast("AdapterSlots", self._adapted.table.handle)

    def _find(self, name: str) -> _Named:
        if name not in self._named:
            known = ", ".join(self._named) or "no adapters"
            raise AdapterNotFoundError(f"no adapter {name!r:.80} is loaded; loaded: {known:.400}")
        return self._named[name]

    def _held(self, name: str) -> tuple[_Named, _Resident]:
        """Return an adapter; read it again if it is not in memory."""
        named = self._find(name)
        if named.resident is None:
            named = self._named[name] = self._read(named.path)
        self._uses += 1
        named.last_used = self._uses
        assert named.resident is not None
        return named, named.resident

    def _read(self, path: Path) -> _Named:
        with open_adapter(path) as adapter:
            pairs = match_adapter(adapter, self._architecture, self._model, self._adapted.numbers)
            sizes = self._slots.num_bytes(pairs)
            num_bytes = sum(sizes.values())
            self._make_room(path, num_bytes)
            self._uses += 1
            digest, resident = self._placed(adapter, pairs, sizes)
            return _Named(path, adapter.rank, adapter.alpha, digest, num_bytes, self._uses, resident)

    def _placed(
        self, adapter: AdapterFile, pairs: Mapping[int, LoraMatrices], sizes: ByDevice
    ) -> tuple[str, _Resident]:
        """Put the pairs into a slot while another thread computes their digest."""
        slot = self._free.pop()
        self._sizes[slot] = sizes
        with ThreadPoolExecutor(1) as beside:
            digest = beside.submit(adapter.digest)
            try:
                self._slots.put(slot, pairs)
            except BaseException:
                self._release(slot)
                raise
        resident = _Resident(slot, -(-adapter.rank // _LANES) * _LANES)
        weakref.finalize(resident, self._release, slot)
        return digest.result(), resident

    def _make_room(self, path: Path, num_bytes: int) -> None:
        """Release unused adapters until a slot and enough memory are free for another one."""
        if self._max_bytes is None:
            self._max_bytes = int(_SHARE * available_memory())
        while not self._free or self.num_bytes + num_bytes > self._max_bytes:
            idle = [n for n in self._named.values() if n.resident is not None and not n.is_used]
            if not idle:
                raise OutOfMemoryError(
                    f"{path}: the adapter takes {num_bytes / 1e6:.0f} MB, but adapters may take "
                    f"{self._max_bytes / 1e6:.0f} MB in total, and requests are using "
                    f"{self.num_bytes / 1e6:.0f} MB of them; wait for requests to end, unload adapters, "
                    "or allow more by CHASKI_ADAPTERS_MEMORY"
                )
            min(idle, key=lambda named: named.last_used).resident = None

    def _release(self, slot: int) -> None:
        self._slots.clear(slot)
        self._sizes.pop(slot, None)
        self._free.append(slot)
