from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaski.names import Digest
from chaski.store.http import Access
from chaski.store.pull import pull
from chaski.store.store import Store
from chaski.store.verify import verify
from tests.store.fake_registry import FakeRegistry, cut_after, stall_after
from tests.store.pulling import LAYERS, LOCAL, PACE, WEIGHTS, assert_pulled, pulled
from tests.store.stores import assert_valid

ROOT = Path(__file__).parents[2]


def flip(store: Store, registry: FakeRegistry, kind: str, position: int) -> Path:
    """Flip one bit of the model's blob; return its path."""
    (layer,) = store.entry(registry.name()).manifest.of_kind(kind)
    path = store.blobs.path(layer.digest)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    return path


def blob_requests(registry: FakeRegistry) -> int:
    return sum("/blobs/" in path for _, path, _ in registry.requests)


def test_what_verify_found_damaged_comes_anew(store: Store, registry: FakeRegistry, tiny_llama: Path) -> None:
    weights = tiny_llama.read_bytes()
    data = registry.put({"model": weights, "template": b"{{ .Prompt }}"})
    pulled(store, registry)
    path = flip(store, registry, "model", -1)
    registry.requests.clear()
    pulled(store, registry)
    assert path.read_bytes() != weights  # a pull does not read all weights again
    assert not blob_requests(registry)
    assert [finding.problem for finding in verify(store) if finding.problem]
    pulled(store, registry)
    path.with_name(f"{path.name}-damaged").unlink()
    assert_pulled(store, registry, data)
    assert not [finding.problem for finding in verify(store) if finding.problem]


@pytest.mark.parametrize(("kind", "position"), [("template", 0), ("model", 0), ("model", 9)])
def test_what_is_plainly_damaged_comes_anew_at_once(
    store: Store, registry: FakeRegistry, tiny_llama: Path, kind: str, position: int
) -> None:
    data = registry.put({"model": tiny_llama.read_bytes(), "template": b"{{ .Prompt }}"})
    pulled(store, registry)
    path = flip(store, registry, kind, position)
    pulled(store, registry)
    path.with_name(f"{path.name}-damaged").unlink()
    assert_pulled(store, registry, data)


def test_a_model_comes_in_parts(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    events = pulled(store, registry)
    assert_pulled(store, registry, data)
    statuses = list(dict.fromkeys(event.status for event in events))
    layers = [f"pulling {layer.digest.short}" for layer in store.entry(registry.name()).manifest.blobs]
    end = ["verifying sha256 digest", "writing manifest", "success"]
    assert statuses == ["pulling manifest", *layers, *end]
    weights = [event for event in events if event.total == len(WEIGHTS)]
    assert weights[0].fields() == {
        "status": layers[0],
        "digest": str(weights[0].digest),
        "total": len(WEIGHTS),
    }
    assert weights[-1].completed == len(WEIGHTS)
    ranges = {headers["Range"] for _, _, headers in registry.requests if "Range" in headers}
    assert ranges == {f"bytes={begin}-{begin + 249_999}" for begin in range(0, 1_000_000, 250_000)}


def test_what_is_here_is_not_fetched_again(store: Store, registry: FakeRegistry) -> None:
    registry.put(LAYERS)
    pulled(store, registry)
    data = registry.put({**LAYERS, "params": b'{"seed":1}'})
    registry.requests.clear()
    assert "removing unused layers" in [event.status for event in pulled(store, registry)]
    assert len([path for _, path, _ in registry.requests if "/blobs/" in path]) == 1
    assert_pulled(store, registry, data)


def test_a_blob_of_the_wrong_size_is_fetched_again(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    pulled(store, registry)
    weights = store.entry(registry.name()).manifest.layers[0].digest
    store.blobs.path(weights).write_bytes(b"short")
    pulled(store, registry)
    assert_pulled(store, registry, data)


@pytest.mark.parametrize("seed", range(3))
def test_fifty_random_cuts(store: Store, registry: FakeRegistry, seed: int) -> None:
    chance = random.Random(seed)
    data = registry.put(LAYERS)
    registry.faults.extend(cut_after(chance.randrange(1, 20_000)) for _ in range(50))
    pulled(store, registry)
    assert not registry.faults
    assert_pulled(store, registry, data)


@contextmanager
def pulling(store: Store, registry: FakeRegistry) -> Iterator[Iterator[int]]:
    """Run a process that pulls and reports its bytes; kill it at the end of the block."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from chaski.names import ModelName\n"
        "from chaski.store.http import Access\n"
        "from chaski.store.pull import pull\n"
        "from chaski.store.store import Store\n"
        "from tests.store.pulling import PACE\n"
        "access = Access(True, frozenset({'127.0.0.1'}))\n"
        "for event in pull(Store(Path(sys.argv[1])), ModelName.parse(sys.argv[2]), access, PACE):\n"
        "    print(event.completed or 0, flush=True)\n"
    )
    name = f"http://{registry.host}/me/model:1"
    command = [sys.executable, "-c", program, str(store.root), name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield map(int, process.stdout)
        finally:
            process.kill()


def test_a_killed_pull_goes_on_where_it_was(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    registry.faults.extend(stall_after(200_000) for _ in range(4))
    with pulling(store, registry) as progress:
        next(completed for completed in progress if completed >= 800_000)
    assert list(store.names()) == []
    assert list(store.blobs) == []
    pulled(store, registry)
    assert_pulled(store, registry, data)


@pytest.mark.parametrize("seed", range(2))
def test_fifty_random_cuts_and_a_kill(store: Store, registry: FakeRegistry, seed: int) -> None:
    chance = random.Random(seed)
    data = registry.put(LAYERS)
    cuts = [cut_after(chance.randrange(1, 20_000)) for _ in range(50)]
    # The process never finishes: parts that are no longer cut stall.
    registry.faults.extend([*cuts[:25], *(stall_after(chance.randrange(50_000)) for _ in range(8))])
    with pulling(store, registry) as progress:
        for _ in range(chance.randrange(5, 100)):
            next(progress)
    assert list(store.names()) == []
    assert_valid(store)
    unused = [fault for fault in registry.faults if fault in cuts]
    registry.faults.clear()
    registry.faults.extend([*unused, *cuts[25:]])
    pulled(store, registry)
    assert not registry.faults
    assert_pulled(store, registry, data)


def test_notes_of_a_process_that_was_killed_do_not_stay(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    registry.faults.extend(stall_after(200_000) for _ in range(4))
    events = pull(store, registry.name(), LOCAL, PACE)
    next(event for event in events if (event.completed or 0) >= 800_000)
    events.close()
    (partial,) = store.blobs.folder.glob("*-partial")
    # It was writing a note, and had published one blob without having deleted its notes.
    partial.with_name(f"{partial.name}.2").write_text('{"N":2,')
    template = Digest(hashlib.sha256(LAYERS["template"]).hexdigest())
    store.blobs.add(LAYERS["template"])
    note = store.blobs.folder / f"{template.file_name}-partial-0"
    note.write_text('{"N":0,"Offset":0,"Size":13,"Completed":13}')
    pulled(store, registry)
    assert_pulled(store, registry, data)


def test_a_stopped_pull_fetches_only_what_is_missing(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    registry.faults.extend(stall_after(200_000) for _ in range(4))
    patient = Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}), stall_seconds=60.0)
    events = pull(store, registry.name(), patient, PACE)
    next(event for event in events if (event.completed or 0) >= 800_000)
    before = time.monotonic()
    events.close()
    assert time.monotonic() - before < 8, "it waits for the silent server"
    assert list(store.blobs) == []
    registry.requests.clear()
    pulled(store, registry)
    assert_pulled(store, registry, data)
    ranges = sorted(headers["Range"] for _, _, headers in registry.requests if "Range" in headers)
    assert ranges[0] == "bytes=200000-249999"
    assert len(ranges) == 4


def test_a_download_that_ollama_has_begun_goes_on(store: Store, registry: FakeRegistry) -> None:
    data = registry.put(LAYERS)
    digest = Digest.parse(json.loads(data)["layers"][0]["digest"])
    partial = store.blobs.folder / f"{digest.file_name}-partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(WEIGHTS[:600_000] + bytes(100_000) + WEIGHTS[700_000:])
    parts = [(0, 0, 500_000, 500_000), (1, 500_000, 500_000, 100_000)]
    for number, offset, size, completed in parts:
        fields = {"N": number, "Offset": offset, "Size": size, "Completed": completed}
        Path(f"{partial}-{number}").write_text(json.dumps(fields))
    pulled(store, registry)
    assert_pulled(store, registry, data)
    assert {h["Range"] for _, _, h in registry.requests if "Range" in h} == {"bytes=600000-999999"}
