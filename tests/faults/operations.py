"""Operations whose calls of the C library fail, one after the other.

`python -m tests.faults.operations FOLDER OPERATION KIND [--most N] [--all-after]` runs one operation once for
each of its calls of a kind, in a process with the library of `failing.py`. It prints JSON: the number of
calls, and what is wrong after any of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import chaski
from chaski.batches.lines import BatchLine
from chaski.batches.results import Results
from chaski.batches.run import Reply, run_batch
from chaski.errors import ChaskiError
from chaski.names import ModelName
from chaski.runner.engine import prompt_timer
from chaski.runner.prefix import naming, tiers
from chaski.store.create import create
from chaski.store.pull import pull
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.faults.failing import Kind, arm, disarm, has_failed
from tests.store.pulling import LOCAL, PACE
from tests.store.stores import assert_valid
from tests.tiny_llama import write_tiny_llama

__all__ = ["OPERATIONS", "Operation"]

_GREEDY: dict[str, Any] = {"temperature": 0, "num_predict": 4}
_PROMPT = list(range(5, 75))
_CALLS = 4000


class Operation:
    """One operation. It may fail by a ChaskiError, a MemoryError, or the OSError of the call itself."""

    def __init__(self, shared: Path) -> None:
        """Prepare what all runs share, in an empty folder."""
        self.shared = shared

    def prepare(self, folder: Path) -> None:
        """Make the folder in which the next run begins."""

    def run(self, folder: Path) -> object:
        """Do it. Calls fail meanwhile."""
        raise NotImplementedError

    def check(self, folder: Path, result: object) -> None:
        """Check a result that was given although a call failed."""

    def check_left(self, folder: Path) -> None:
        """Check what the operation left, after it failed or not. No call fails any more."""


class _Stored(Operation):
    """Changes of a store with one model, which must stay as it is."""

    def __init__(self, shared: Path) -> None:
        super().__init__(shared)
        self.source = write_tiny_llama(shared / "tiny.gguf")
        self._made = shared / "store"
        self._create(Store(self._made), "kept")

    def _create(self, store: Store, name: str, system: str | None = None) -> None:
        recipe = Recipe(sources=[self.source], system=system, parameters={"temperature": 0.5})
        for _ in create(store, ModelName.parse(name), recipe):
            pass

    def prepare(self, folder: Path) -> None:
        shutil.copytree(self._made, folder / "store")

    def check_left(self, folder: Path) -> None:
        store, kept = Store(folder / "store"), ModelName.parse("kept")
        assert_valid(store)
        assert store.manifest_bytes(kept) == Store(self._made).manifest_bytes(kept), "the kept model changed"
        self.run(folder)
        assert_valid(store)
        store.prune()
        names = {str(name) for name in store.names()}
        used = {layer.digest for name in store.names() for layer in store.entry(name).manifest.blobs}
        assert set(store.blobs) == used, f"blobs are left over beside those of {names}"


class Create(_Stored):
    """Create a model with a new layer."""

    def run(self, folder: Path) -> None:
        self._create(Store(folder / "store"), "new", "a system message")

    def check(self, folder: Path, result: object) -> None:
        assert Store(folder / "store").entry(ModelName.parse("new")).manifest.of_kind("system")


class Copy(_Stored):
    """Copy a model and remove the copy."""

    def run(self, folder: Path) -> None:
        store = Store(folder / "store")
        store.copy(ModelName.parse("kept"), ModelName.parse("copied"))
        store.remove(ModelName.parse("copied"))


class Pull(_Stored):
    """Pull a model from a registry in another process."""

    def __init__(self, shared: Path) -> None:
        super().__init__(shared)
        code = "from tests.faults.operations import serve_registry; serve_registry()"
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self._server = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        assert self._server.stdout is not None
        self._host = self._server.stdout.readline().decode().strip()

    def run(self, folder: Path) -> None:
        name = ModelName.parse(f"http://{self._host}/me/model:1")
        for _ in pull(Store(folder / "store"), name, LOCAL, PACE):
            pass

    def check(self, folder: Path, result: object) -> None:
        name = ModelName.parse(f"http://{self._host}/me/model:1")
        assert Store(folder / "store").entry(name).size > 1_000_000


def serve_registry() -> None:
    """Serve the registry of `tests.store.pulling` until the input ends, and print its address."""
    from tests.store.fake_registry import FakeRegistry
    from tests.store.pulling import LAYERS

    registry = FakeRegistry()
    registry.put(LAYERS)
    with registry.running():
        print(registry.host, flush=True)
        sys.stdin.read()


class Load(Operation):
    """Load a model, answer, and close it."""

    options: Mapping[str, Any] = {"prompt_cache": False}

    def __init__(self, shared: Path) -> None:
        super().__init__(shared)
        self.model = write_tiny_llama(shared / "tiny.gguf")
        self.expected = self._answered()

    def run(self, folder: Path) -> object:
        return self._answered()

    def check(self, folder: Path, result: object) -> None:
        assert result == self.expected, f"the answer is {result}, not {self.expected}"

    def check_left(self, folder: Path) -> None:
        mapped = Path("/proc/self/maps").read_text()
        assert self.model.name not in mapped, "the model is still mapped"
        self.check(folder, self._answered())

    def _answered(self) -> object:
        with chaski.load(self.model, context=128, threads=2, **self.options) as loaded:
            return [list(loaded.generate(_PROMPT, **_GREEDY).token_ids) for _ in range(2)]


class PrefixCache(Load):
    """Load a model twice with a prefix cache on the disk, and answer: the cache may fail, but no answer."""

    options: Mapping[str, Any] = {}

    def run(self, folder: Path) -> object:
        with _blocks_of(folder):
            return [self._answered(), self._answered()]

    def check(self, folder: Path, result: object) -> None:
        assert result == [self.expected, self.expected], f"answers are {result}, not {self.expected}"

    def check_left(self, folder: Path) -> None:
        self.check(folder, self.run(folder))
        assert not list(folder.rglob("*.tmp")), "temporary files are left over"


class SavedState(Load):
    """Save a state, and load it into another model."""

    def run(self, folder: Path) -> object:
        path = folder / "kept.state"
        with _blocks_of(folder, "memory"):
            with self._loaded() as one:
                one.save_state(path, _PROMPT)
            with self._loaded() as other:
                other.load_state(path)
                return [list(other.generate(_PROMPT, **_GREEDY).token_ids)] * 2

    def check_left(self, folder: Path) -> None:
        super().check_left(folder)
        self.check(folder, self.run(folder))
        assert {path.name for path in folder.iterdir()} == {"kept.state"}

    def _loaded(self) -> chaski.LLM:
        return chaski.load(self.model, context=128, threads=1)


class Batch(Operation):
    """Answer the requests of a batch, and write its results."""

    lines = tuple(BatchLine(number, f"id-{number}", "/v1/completions", {"n": number}) for number in range(12))

    def run(self, folder: Path) -> None:
        with Results.open(folder / "results.jsonl", retries_failed=True) as results:
            asyncio.run(run_batch(self.lines, _answer, results, 3))

    def check(self, folder: Path, result: object) -> None:
        found = [json.loads(line) for line in (folder / "results.jsonl").read_bytes().splitlines()]
        ids = sorted(each["custom_id"] for each in found)
        assert ids == sorted(line.custom_id for line in self.lines), f"results are of {ids}"
        assert all(each["response"]["status_code"] == 200 for each in found)

    def check_left(self, folder: Path) -> None:
        self.run(folder)
        self.check(folder, None)
        assert [path.name for path in folder.iterdir()] == ["results.jsonl"]


async def _answer(url: str, body: Mapping[str, Any]) -> Reply:
    await asyncio.sleep(0)
    return Reply(200, {"echo": body["n"]}, f"answer-{body['n']}")


@contextmanager
def _blocks_of(folder: Path, where: str = "on") -> Iterator[None]:
    """Keep small blocks of every prompt in a folder, and more in host memory than fits."""
    settings = {
        "CHASKI_PREFIX_CACHE": where,
        "CHASKI_PREFIX_CACHE_DISK": "2MB",
        "OLLAMA_MODELS": str(folder),
    }
    with (
        patch.dict(os.environ, settings),
        patch.object(naming, "BLOCK", 16),
        patch.object(tiers, "_FEWEST", 1),
        patch.object(prompt_timer, "_PROMPT", 1),
    ):
        yield


OPERATIONS: Mapping[str, Callable[[Path], Operation]] = {
    "create": Create,
    "copy": Copy,
    "pull": Pull,
    "load": Load,
    "prefix-cache": PrefixCache,
    "saved-state": SavedState,
    "batch": Batch,
}


def fail_each(
    operation: Operation, kind: Kind, folder: Path, most: int, and_all_after: bool
) -> dict[str, Any]:
    """Run an operation without a failure, and then once for each of its calls of a kind, `most` at most.

    With more calls, those that fail are spread over all of them.
    """
    calls, _ = _once(operation, kind, 0, folder, False)  # imports modules
    calls, _ = _once(operation, kind, 0, folder, False)
    step = max(1, -(-calls // most))
    wrong = {}
    for number in range(1, calls + 1, step):
        _, problem = _once(operation, kind, number, folder, and_all_after)
        if problem is not None:
            wrong[number] = problem
    return {"calls": calls, "failed": len(range(1, calls + 1, step)), "wrong": wrong}


def _once(
    operation: Operation, kind: Kind, number: int, root: Path, and_all_after: bool
) -> tuple[int, str | None]:
    """Run an operation in a new folder while call `number` fails. Return the calls, and what is wrong."""
    folder = root / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    operation.prepare(folder)
    before = _held()
    result: object = None
    error: BaseException | None = None
    arm(kind, number, and_all_after, root)
    try:
        result = operation.run(folder)
    except BaseException as raised:
        error = raised
    calls = disarm()
    try:
        if error is None:
            operation.check(folder, result)
        else:
            _require_allowed(error)
        del result
        error = None
        left = _held()
        assert left <= before, f"descriptors and threads: {before} became {left}, {_descriptors()}"
        operation.check_left(folder)
    except BaseException as problem:
        lines = traceback.format_exception(problem)
        return calls, "".join(lines)[-3000:]
    return calls, None


def _require_allowed(error: BaseException) -> None:
    if not isinstance(error, ChaskiError | MemoryError) and not (isinstance(error, OSError) and has_failed()):
        raise error


def _held() -> tuple[int, int]:
    """Return the numbers of open descriptors and of threads, without garbage and threads that end."""
    gc.collect()
    with suppress(RuntimeError):
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.name.startswith("chaski"):
                thread.join(0.5)
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def _descriptors() -> list[str]:
    return [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("operation", choices=OPERATIONS)
    parser.add_argument("kind", choices=[kind.name for kind in Kind])
    parser.add_argument("--most", type=int, default=_CALLS)
    parser.add_argument("--all-after", action="store_true")
    parsed = parser.parse_args()
    shared = parsed.folder / "shared"
    shared.mkdir()
    operation = OPERATIONS[parsed.operation](shared)
    found = fail_each(operation, Kind[parsed.kind], parsed.folder, parsed.most, parsed.all_after)
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
