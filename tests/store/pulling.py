"""A registry with one model, and pulls of it."""

from __future__ import annotations

import os
import random

from chaski.store.download import Pace
from chaski.store.http import Access
from chaski.store.progress import StoreProgress
from chaski.store.pull import pull
from chaski.store.store import Store
from tests.store.fake_registry import FakeRegistry
from tests.store.stores import assert_valid

WEIGHTS = random.Random(1).randbytes(1_000_000)
LAYERS = {"model": WEIGHTS, "template": b"{{ .Prompt }}", "params": b"{}", "license": b""}
LOCAL = Access(insecure=True, private_hosts=frozenset({"127.0.0.1"}), stall_seconds=0.3)
PACE = Pace(connections=4, min_part_bytes=100_000, pause_seconds=0.001, report_seconds=0.001)


def pulled(
    store: Store, registry: FakeRegistry, access: Access = LOCAL, pace: Pace = PACE
) -> list[StoreProgress]:
    return list(pull(store, registry.name(), access, pace))


def assert_pulled(store: Store, registry: FakeRegistry, data: bytes) -> None:
    """Check that the model is complete, without leftovers of the pull."""
    entry = store.entry(registry.name())
    manifest = store.root / "manifests" / registry.host / "me/model/1"
    assert manifest.read_bytes() == data
    assert entry.size == sum(
        len(store.blobs.path(layer.digest).read_bytes()) for layer in entry.manifest.blobs
    )
    assert_valid(store)
    blobs = {layer.digest.file_name for layer in entry.manifest.blobs}
    assert set(os.listdir(store.blobs.folder)) == blobs
