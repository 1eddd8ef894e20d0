"""`Estimates`: estimate the memory that models would take, with a process per question."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from chaski.env import child_environment
from chaski.errors import OptionError, WorkerError
from chaski.ml import has_gpu_driver
from chaski.ml.backend import HOST
from chaski.ml.machine import available_memory
from chaski.names import ModelName
from chaski.server.models.children import command

__all__ = ["Estimates"]

_LONGEST = 60.0


class Estimates:
    """Estimator that answers one question at a time, since each takes a core for some tenths of a second."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def ask(
        self,
        root: Path,
        name: ModelName,
        context: int | None,
        parallel: int | None,
        most_parallel: int,
        freeable: int,
    ) -> dict[str, Any]:
        """Return the answer of `chaski.runner.loading.estimate` about a model of the store at `root`.

        freeable: bytes of host memory that unloading all models would free

        Raises OptionError if the model can never be loaded at that size, WorkerError if the estimate fails.
        """
        question = {
            "store": str(root),
            "model": str(name),
            "num_ctx": context,
            "parallel": parallel,
            "most_parallel": most_parallel,
            "freeable": freeable,
        }
        async with self._turn:
            answer = await _answer(json.dumps(question).encode())
        if "error" in answer:
            raise OptionError(answer["error"])
        return {"model": name.short} | answer

    async def available(self) -> dict[str, int]:
        """Return the free bytes of each device. Raises WorkerError if that fails.

        Only a machine with a GPU needs a process for it, since its driver stays out of the server.
        """
        if not has_gpu_driver():
            return {HOST: available_memory()}
        found: dict[str, int] = await _answer(b"{}")
        return found


async def _answer(question: bytes) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *command("chaski.runner.loading.estimate"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=child_environment(),
        process_group=0,
    )
    try:
        async with asyncio.timeout(_LONGEST):
            answer, _ = await process.communicate(question)
        found: dict[str, Any] = json.loads(answer)
    except (TimeoutError, ValueError):
        raise WorkerError("the memory of the model could not be estimated") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return found
