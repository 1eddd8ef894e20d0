"""The fastest variants of kernels on this machine, measured once and kept for later processes.

Kernel variants differ in how far ahead they prefetch weights and in how many panels they unpack at once; no
choice changes a bit of a result (`native/include/variants.h`). Models measure the variants while they
compute, and a small file keeps the picks by processor, instruction set, number of threads and version. Small
models, which fit at least partly into the processor's caches, have separate picks. A file that is damaged or
of another version is ignored.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

from chaski import __version__, _native
from chaski.ml.machine import cpu_model

__all__ = ["KernelVariants", "Picks", "variants_file"]

Picks = dict[str, dict[str, str]]
"""Names of variants by type of weights (small models' types are separate) and class of token counts."""

# Bytes of weights from which on a model is large, and the suffix for the weight types of small models.
_LARGE = 256 << 20
_SMALL = " in small models"


class KernelVariants:
    """The picks of one backend, read when it opens and saved whenever another one is measured."""

    def __init__(self, wanted: str, isa: str, threads: int) -> None:
        """`wanted`: `measured`; for tests `first` (of each list, without measuring) or `random:SEED`."""
        seed = int(wanted.removeprefix("random:")) if wanted.startswith("random:") else None
        self._of_models = {suffix: _native.VariantPicks(isa, seed) for suffix in ("", _SMALL)}
        self._is_kept = wanted == "measured"
        self._key = f"{cpu_model()}, {isa}, {threads} threads"
        self._measured = 0
        if self._is_kept:
            for type, picks in _read(variants_file()).get(self._key, {}).items():
                suffix = _SMALL if type.endswith(_SMALL) else ""
                for tokens, variant in picks.items():
                    self._of_models[suffix].pick(type.removesuffix(suffix), tokens, variant)
        elif seed is None:
            for native in self._of_models.values():
                native.settle()

    def of(self, weight_bytes: int) -> _native.VariantPicks:
        """Return the picks for a model with that many bytes of weights."""
        return self._of_models["" if weight_bytes >= _LARGE else _SMALL]

    def picks(self) -> Picks:
        """Return the picks so far."""
        picks: Picks = {}
        for suffix, native in self._of_models.items():
            for type, tokens, variant in native.picks():
                picks.setdefault(type + suffix, {})[tokens] = variant
        return picks

    def keep(self) -> None:
        """Write the file if there are new picks. If that fails, the next process measures again."""
        measured = sum(native.measured for native in self._of_models.values())
        if not self._is_kept or measured == self._measured:
            return
        self._measured = measured
        path = variants_file()
        with suppress(OSError):
            _write(path, {**_read(path), self._key: self.picks()})


def variants_file() -> Path:
    """The file of the picks, in the user's folder of caches."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(folder) / "chaski" / "kernel-variants.json"


def _read(path: Path) -> dict[str, Picks]:
    """Return all machines' picks in the file; none if it is damaged or of another version."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(1 << 20))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict) or content.get("version") != __version__:
        return {}
    machines = content.get("picks")
    return machines if _are_picks(machines) else {}


def _are_picks(machines: object) -> TypeGuard[dict[str, Picks]]:
    def values(mapping: object) -> list[object] | None:
        return list(mapping.values()) if isinstance(mapping, dict) else None

    level: list[object] = [machines]
    for _ in range(3):  # machines, types of weights, numbers of tokens
        below = [values(mapping) for mapping in level]
        if None in below:
            return False
        level = [value for of_one in below if of_one is not None for value in of_one]
    return all(isinstance(name, str) for name in level)


def _write(path: Path, machines: Mapping[str, Picks]) -> None:
    """Replace the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        aside.write_text(json.dumps({"version": __version__, "picks": machines}, indent=1) + "\n")
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
