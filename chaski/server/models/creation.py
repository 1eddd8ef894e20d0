"""`create_model`: create a model for a request of /api/create, in a separate process.

As a program, `python -m chaski.server.models.creation`, this module reads a request from standard input and
writes its steps as lines of JSON. A separate process is used because the files are untrusted, and because
quantizing them occupies all cores for minutes. Meanwhile the server keeps answering, and it stops the work if
the client disconnects.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from chaski.env import child_environment
from chaski.errors import WorkerError
from chaski.model.file_dialects import open_model
from chaski.names import Digest, ModelName
from chaski.server.dialects.recipes import read_recipe
from chaski.server.fields.reader import Fields
from chaski.server.models.children import command, failure, raise_failure, reason
from chaski.store.create import create
from chaski.store.progress import StoreProgress
from chaski.store.store import Store

__all__ = ["create_model"]

_LONGEST_LINE = 1 << 20
_SECONDS_TO_END = 5.0  # for the process to remove its unfinished files


async def create_model(
    root: Path, name: ModelName, body: Mapping[str, Any]
) -> AsyncGenerator[StoreProgress, None]:
    """Create a model in the store at `root` from the fields of a request, and yield the steps.

    All sources must be in the store. Closing the generator ends the process. Raises the errors of
    `chaski.store.create.create`, and WorkerError if the process dies.
    """
    question = json.dumps({"store": str(root), "name": name.shown, "body": body}).encode()
    process = await asyncio.create_subprocess_exec(
        *command("chaski.server.models.creation"),
        stdin=PIPE,
        stdout=PIPE,
        env=child_environment(),
        process_group=0,
        limit=_LONGEST_LINE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(ConnectionError):  # the process has died, which its status shows below
            process.stdin.write(question)
            await process.stdin.drain()
        process.stdin.close()
        async for line in process.stdout:
            step = json.loads(line)
            raise_failure(step)
            yield _progress(step)
        if status := await process.wait():
            raise WorkerError(f"the process that creates {name.shown} ended {reason(status)}")
    finally:
        await _end(process)


def _progress(step: Mapping[str, Any]) -> StoreProgress:
    digest = Digest.parse(step["digest"]) if "digest" in step else None
    return StoreProgress(step["status"], digest, step.get("total"), step.get("completed"))


async def _end(process: Process) -> None:
    """End the process if it is still running, and wait for its end."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_SECONDS_TO_END):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def main() -> None:
    """Answer the request on standard input."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    question = json.load(sys.stdin)
    store, name = Store(Path(question["store"])), ModelName.parse(question["name"])
    try:
        recipe = read_recipe(Fields(question["body"]))
        with closing(create(store, name, recipe, open_model=open_model)) as steps:
            for step in steps:
                _write(step.fields())
    except BrokenPipeError:
        sys.exit(1)  # the server has died
    except Exception as error:
        _write(failure(error, f"creating {name.shown}"))


def _write(line: Mapping[str, str | int]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
