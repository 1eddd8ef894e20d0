"""`BatchService`: answer batches of OpenAI's API in the background, and continue them after a restart."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from chaski.batches.lines import URLS, BatchLine, check_lines, read_lines
from chaski.batches.results import Results
from chaski.batches.run import Ask, Tokens, run_batch
from chaski.errors import BusyError, ChaskiError, FileNotKnownError, FormatError, OptionError
from chaski.server.batches.files import Ages, FileStore, Kept, open_private, read_object, write_object

__all__ = ["BatchService"]

_log = logging.getLogger(__name__)

_WINDOW = "24h"
_WINDOW_SECONDS = 24 * 3600
_IN_FLIGHT = 16
"""Number of concurrent requests of a batch, which share the models with the requests of other clients."""
_MOST_WAITING = 100
"""Largest number of unfinished batches per owner."""
_MOST_KEPT = 1000
"""Largest number of finished batches per owner; the oldest ones are deleted."""
_CHECKED_EVERY = 256
"""Number of requests between two checks of the free disk space."""
_LINE_THREADS = 2
"""Number of threads that read the requests of all batches and write their results."""
_UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
_STATE, _RESULTS = "batch.json", "results.jsonl"
_ID = re.compile(r"batch_[0-9a-f]{24}")


class _Batch(Kept):
    """Required fields of the state of a batch."""

    endpoint: str
    input_file_id: str
    expires_at: int
    request_counts: dict[str, int]


class BatchService:
    """Service that answers batches. Use it in one event loop only.

    `ask_as` returns the function that sends the requests of a client.

    A batch is a folder next to the files of its owner. It contains the state and the results so far, so that
    a restarted server can continue the batch.
    """

    def __init__(self, files: FileStore, ask_as: Callable[[str], Ask]) -> None:
        self._files = files
        self._ask_as = ask_as
        self._running: dict[Path, tuple[asyncio.Task[None], dict[str, Any]]] = {}
        self._ages = Ages()
        # Checking a large file takes long, so a separate thread checks one file at a time.
        self._checks = ThreadPoolExecutor(1, "chaski-batch-check")
        self._lines = ThreadPoolExecutor(_LINE_THREADS, "chaski-batch-line")

    def resume(self) -> None:
        """Continue all unfinished batches."""
        for path in self._files.folder.glob(f"*/batch_*/{_STATE}"):
            state = read_object(path, _Batch)
            if state is None:
                _log.warning("%s is not a valid state of a batch; the batch is skipped", path)
            elif state["status"] in _UNFINISHED:
                self._start(path.parent, state)

    async def create(
        self, owner: str, file_id: str, endpoint: str, window: str, metadata: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Start to answer the requests of a file. Raises OptionError, FileNotKnownError, BusyError."""
        if endpoint not in URLS:
            raise OptionError(f"endpoint must be one of {', '.join(URLS)}, not {endpoint!r:.80}")
        if window != _WINDOW:
            raise OptionError(f"completion_window must be {_WINDOW}, not {window!r:.40}")
        self._files.content(owner, file_id)
        folder = self._files.folder / owner
        if sum(place.parent == folder for place in self._running) >= _MOST_WAITING:
            raise BusyError(f"{_MOST_WAITING} batches are not done yet; wait for them, or cancel some")
        now = int(time.time())
        place = folder / f"batch_{uuid4().hex[:24]}"
        state = {
            "id": place.name,
            "object": "batch",
            "endpoint": endpoint,
            "errors": None,
            "input_file_id": file_id,
            "completion_window": window,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + _WINDOW_SECONDS,
            **{f"{name}_at": None for name in ("in_progress", "finalizing", "completed", "failed")},
            **{f"{name}_at": None for name in ("expired", "cancelling", "cancelled")},
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": dict(metadata) or None,
        }
        await self._files.run(self._forget_oldest, owner)
        await self._files.run(_write_new, place, state)
        self._start(place, state)
        return dict(state)

    def get(self, owner: str, batch_id: str) -> Mapping[str, Any]:
        """Return a batch. Raises FileNotKnownError."""
        return dict(self._state(self._files.folder / owner / batch_id))

    def ids(self, owner: str) -> list[str]:
        """Return the ids of the batches of an owner, the oldest first."""
        return self._ages.ordered((self._files.folder / owner).glob(f"batch_*/{_STATE}"), _Batch)

    def find(self, owner: str, batch_id: str) -> Mapping[str, Any] | None:
        """Return a batch; None if it does not exist."""
        with suppress(FileNotKnownError):
            return self.get(owner, batch_id)
        return None

    def cancel(self, owner: str, batch_id: str) -> Mapping[str, Any]:
        """Cancel a batch and keep its results so far. Raises FileNotKnownError, OptionError if it ended."""
        place = self._files.folder / owner / batch_id
        state = self._state(place)
        if place not in self._running or state["status"] not in _UNFINISHED:
            raise OptionError(f"Cannot cancel a batch with status '{state['status']}'.")
        if state["status"] not in ("cancelling", "finalizing"):
            _enter(place, state, "cancelling")
            task, _ = self._running[place]
            task.cancel()
        return dict(state)

    async def close(self) -> None:
        """Stop all batches; `resume` can continue them later."""
        tasks = [task for task, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for threads in (self._checks, self._lines):
            threads.shutdown(wait=False, cancel_futures=True)

    def _forget_oldest(self, owner: str) -> None:
        folder = self._files.folder / owner
        done = [folder / each for each in self.ids(owner) if folder / each not in self._running]
        for place in done[: max(0, len(done) + 1 - _MOST_KEPT)]:
            shutil.rmtree(place, ignore_errors=True)
            self._ages.forget(place / _STATE)

    def _state(self, place: Path) -> dict[str, Any]:
        if place in self._running:
            return self._running[place][1]
        found = read_object(place / _STATE, _Batch) if _ID.fullmatch(place.name) else None
        if found is None:
            raise FileNotKnownError(f"No batch found with id '{place.name:.80}'.")
        return found

    def _start(self, place: Path, state: dict[str, Any]) -> None:
        task = asyncio.create_task(self._run(place, state))
        self._running[place] = task, state
        task.add_done_callback(lambda done: self._running.pop(place, None))

    async def _run(self, place: Path, state: dict[str, Any]) -> None:
        try:
            await self._answer(place, state)
        except FormatError as error:
            await self._files.run(_fail, place, state, str(error))
        except asyncio.CancelledError:
            if state["status"] != "cancelling":  # the server is stopping
                raise
            await self._files.run(self._finish, place, state, "cancelled")
        except TimeoutError:
            await self._files.run(self._finish, place, state, "expired")
        except (ChaskiError, OSError) as error:
            _log.warning("a batch failed: %s", error)
            with suppress(OSError):
                await self._files.run(self._finish, place, state, "failed", str(error))

    async def _answer(self, place: Path, state: dict[str, Any]) -> None:
        if state["status"] == "cancelling":
            await self._files.run(self._finish, place, state, "cancelled")
            return
        content = self._files.content(place.parent.name, state["input_file_id"])
        requests = await asyncio.get_running_loop().run_in_executor(
            self._checks, _checked, content, state["endpoint"]
        )
        counts = state["request_counts"] = {"total": len(requests), "completed": 0, "failed": 0}
        if state["status"] == "validating":
            _enter(place, state, "in_progress")  # without a thread, so that no cancellation comes between
        # This reads the results of an earlier server, which may be many.
        opening = Results.open(place / _RESULTS)
        results = await self._files.run(opening.__enter__)
        try:

            def count(tokens: Tokens | None = None) -> None:
                counts["failed"] = results.num_failed
                counts["completed"] = len(results.done) - results.num_failed

            count()
            ask = self._ask_as(f"batch {place.parent.name}")
            lines = self._with_room(read_lines(content))
            async with asyncio.timeout(max(0.0, state["expires_at"] - time.time())):
                await run_batch(lines, ask, results, _IN_FLIGHT, count, self._lines)
        finally:
            opening.__exit__(None, None, None)
        _enter(place, state, "finalizing")
        await self._files.run(self._finish, place, state, "completed")

    def _with_room(self, lines: Iterable[BatchLine]) -> Iterator[BatchLine]:
        """Yield the lines of a batch. Raises TooLargeError as soon as there is no room for results."""
        for number, line in enumerate(lines):
            if number % _CHECKED_EVERY == 0:
                self._files.require_room(0)
            yield line

    def _finish(self, place: Path, state: dict[str, Any], status: str, error: str | None = None) -> None:
        """Write the results so far to files, and set the final status."""
        owner = place.parent.name
        for is_failed, kind in ((False, "output"), (True, "error")):
            with self._files.receiving(owner) as path:
                if _copy_results(place / _RESULTS, path, is_failed):
                    name, file_id = f"{place.name}_{kind}.jsonl", f"file-{kind}_{place.name}"
                    self._files.add(owner, path, name, "batch_output", file_id)
                    state[f"{kind}_file_id"] = file_id
        if error is not None:
            state["errors"] = _errors(error)
        _enter(place, state, status)
        (place / _RESULTS).unlink(missing_ok=True)


def _checked(content: Path, endpoint: str) -> Mapping[str, str]:
    """Check a file and that all of its requests are for `endpoint`. Raises FormatError."""
    try:
        for line in read_lines(content):
            if line.url != endpoint:
                raise FormatError(f"line {line.number}: url must be {endpoint}, the endpoint of the batch")
        return check_lines(content)
    except FormatError as error:
        # The path would reveal where the server keeps files.
        raise FormatError(str(error).removeprefix(f"{content}, ").removeprefix(f"{content}: ")) from None


def _write_new(place: Path, state: Mapping[str, Any]) -> None:
    place.mkdir(mode=0o700)
    write_object(place / _STATE, state)


def _enter(place: Path, state: dict[str, Any], status: str) -> None:
    state |= {"status": status, f"{status}_at": int(time.time())}
    write_object(place / _STATE, state)


def _fail(place: Path, state: dict[str, Any], message: str) -> None:
    state["errors"] = _errors(message)
    _enter(place, state, "failed")


def _errors(message: str) -> Mapping[str, Any]:
    where = re.match(r"line (\d+): ", message)
    line = None if where is None else int(where.group(1))
    data = [{"code": "invalid_batch", "message": message, "param": None, "line": line}]
    return {"object": "list", "data": data}


def _copy_results(results: Path, target: Path, is_failed: bool) -> int:
    """Copy the results that are errors, or the other ones, and return their number."""
    count = 0
    if results.exists():
        with results.open("rb") as lines, open_private(target) as kept:
            for line in lines:
                if line.endswith(b"\n") and (json.loads(line)["response"]["status_code"] != 200) == is_failed:
                    kept.write(line)
                    count += 1
    return count
