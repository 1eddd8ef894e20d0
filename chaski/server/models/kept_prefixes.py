"""`KeptPrefixes`: the prefix cache of a model's process, for the process that replaces it."""

from __future__ import annotations

import logging
import os
from typing import Self

from chaski.cluster.model import ClusterModel
from chaski.errors import ChaskiError
from chaski.names import NATIVE
from chaski.server.models.loaded import LoadedModel

__all__ = ["KeptPrefixes"]

_log = logging.getLogger(__name__)


class KeptPrefixes:
    """The memory blocks of an ended process's prefix cache, in an unnamed file in memory.

    The files of the prefix cache would not do: they may be turned off, and lack what was computed last.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    async def of(cls, loaded: LoadedModel) -> Self | None:
        """Ask the process of a model for it; None where there is nothing, or it cannot be kept."""
        is_apart = loaded.info.engine != NATIVE or isinstance(loaded.worker, ClusterModel)
        if is_apart or not hasattr(os, "memfd_create") or not loaded.worker.is_running:
            return None
        await loaded.refresh()
        if not any(use.tier == "memory" and use.num_blocks for use in loaded.info.prefixes):
            return None
        kept = cls(os.memfd_create("chaski-prefixes", os.MFD_CLOEXEC))
        try:
            await loaded.model.keep_prefixes(kept._path)
        except ChaskiError as error:
            _log.info("%s: the prefix cache is not kept: %s", loaded.name, error)
            kept.close()
            return None
        return kept

    async def give(self, loaded: LoadedModel) -> None:
        """Give it to the process of another model; blocks of a model that computes otherwise are dropped."""
        try:
            taken = await loaded.model.take_prefixes(self._path)
            _log.info("%s: kept %d tokens of prompts", loaded.name, taken.tokens)
        except ChaskiError as error:
            _log.info("%s: the prefix cache is not kept: %s", loaded.name, error)

    def close(self) -> None:
        """Free the memory."""
        os.close(self._descriptor)

    @property
    def _path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"
