"""Opening the tiers of the prefix cache of a model: what its numbers depend on, where files go, how many."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from chaski import __version__
from chaski.env import Environment
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import LeafCache
from chaski.ml.backend import Backend
from chaski.model.program import Program
from chaski.runner.prefix.disk_tier import DiskLimits, DiskTier
from chaski.runner.prefix.folders import folder_uses
from chaski.runner.prefix.tiers import PrefixTiers, part_sizes
from chaski.runner.prefix.tree import PrefixTree
from chaski.store.model import StoredModel
from chaski.store.store import Store
from chaski.store.verified import content_identity

__all__ = ["disk_limits", "memory_limit", "open_tiers", "prefix_folder", "prefixes_of"]

_MOST_ON_DISK = 10 * 10**9
_SHARE_OF_DISK = 10
_SHARE_OF_MEMORY = 8
_WRITES_A_DAY = 50 * 10**9


def prefix_folder() -> Path:
    """The folder of the prefix cache: in that of the model store, apart from Ollama's own files."""
    return Store.default().root / "chaski" / "prefix-cache"


def memory_limit(environment: Environment, available: int) -> int:
    """Return the limit of blocks in memory: the environment's value, or an eighth of `available`."""
    if environment.prefix_cache == "off":
        return 0
    most = environment.prefix_cache_memory
    return max(0, available) // _SHARE_OF_MEMORY if most is None else most


def prefixes_of(model: StoredModel) -> dict[str, Any]:
    """Return what files hold of a model, under its name or its path: `blocks`, `tokens`, `bytes`, `used`.

    It is empty where they hold nothing. `used` is the time of the last use, as of `time.time`.
    """
    names = {str(model.path), *(() if model.name is None else (model.name.short,))}
    uses = [use for use in folder_uses(prefix_folder()) if use.model in names and use.num_blocks]
    if not uses:
        return {}
    return {
        "blocks": sum(use.num_blocks for use in uses),
        "tokens": sum(use.num_tokens for use in uses),
        "bytes": sum(use.num_bytes for use in uses),
        "used": max(use.used for use in uses),
    }


def disk_limits(environment: Environment) -> DiskLimits:
    """Return the limit of files: the environment's value, or 10 GB, but at most a tenth of the free space.

    The free space does not count the existing files: counting them would take longer than loading a model. So
    they stop growing at a tenth of the space that they leave.
    """
    most = environment.prefix_cache_disk
    if most is None:
        folder = prefix_folder()
        try:
            free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.is_dir())).free
        except OSError:
            free = 0
        most = min(_MOST_ON_DISK, free // _SHARE_OF_DISK)
    a_day = environment.prefix_cache_writes
    return DiskLimits(most, _WRITES_A_DAY if a_day is None else a_day)


def open_tiers(
    available: int,
    program: Program,
    leaves: Sequence[LeafCache],
    backend: Backend,
    files: Iterable[GGUFFile],
    is_plain: bool,
    description: str,
    is_stored: bool,
) -> PrefixTiers | None:
    """Open the tiers of a model, if the environment does not turn them off.

    `available` are bytes of the host's memory that the model leaves. `files` are all that its numbers come
    from, `is_plain` the form of its attention. Without `is_stored` nothing goes to disk.
    """
    environment = Environment.read()
    if environment.prefix_cache == "off":
        return None
    tree = PrefixTree(memory_limit(environment, available))
    paths = sorted({tensor.path for file in files for tensor in file.tensors.values()})
    model = [content_identity(path) for path in paths]
    about = __version__, backend.rule, is_plain, model
    identity = blake2b(program.digest + repr(about).encode(), digest_size=32).digest()
    origin = {
        "version": __version__,
        "model": blake2b(repr(model).encode(), digest_size=16).hexdigest(),
        "name": description.rpartition("/")[2],
        "rule": str(backend.rule),
        "attention": "plain" if is_plain else "flash",
        "graph": program.digest.hex(),
    }
    disk = None
    if is_stored and environment.prefix_cache == "on":
        folder = prefix_folder() / identity[:16].hex()
        limits = disk_limits(environment)
        if limits.max_bytes:
            disk = DiskTier(folder, limits, partial(part_sizes, leaves), description, tree)
    return PrefixTiers(leaves, identity, tree, disk, origin)
