"""What holds in a simulated world at any time, and when all its requests are over."""

from __future__ import annotations

from collections.abc import Collection

from chaski.names import Digest
from chaski.runner.engine.engine import Engine
from chaski.server.services import Services
from chaski.store.store import Store
from tests.cache_checks import assert_whole
from tests.store.stores import assert_valid

__all__ = ["check_engine", "check_idle_engine", "check_idle_server", "check_store"]


def check_engine(engine: Engine) -> None:
    """Check cells and slots, unless a thread is just changing them or a prefix is being restored."""
    if engine._exclusive._owner is None and not engine._sequences.restoring:
        assert_whole(engine)


def check_idle_engine(engine: Engine) -> None:
    """Check that no request runs or waits, and that only requests that were left hold slots.

    The next batch frees these slots; an idle engine computes none.
    """
    sequences = engine._sequences
    placed = [each.sequence for each in sequences.restoring]
    placed += [each.sequence for each in sequences.following]
    joined = [each for each, _ in sequences.joined]
    found = [*sequences.running, *sequences.waiting, *placed, *joined]
    going_on = [each for each in found if each.is_running]
    assert not going_on, f"{len(going_on)} sequences go on without a request"
    left = [each.slot for each in sequences.running] + [each.slot for each in sequences.restoring]
    assert all(slot.is_free or slot in left for slot in engine.prefix_cache.slots), "a slot is busy"


def check_idle_server(services: Services) -> None:
    """Check that no request holds a model, a place in its queue, or memory for its body."""
    for loaded in services.models.loaded:
        assert not loaded.users, f"{loaded.name} has {loaded.users} users without a request"
        assert not loaded.queue.waiting, f"{loaded.name} has {loaded.queue.waiting} waiting requests"
        assert loaded.queue._free == loaded.queue._places, f"places of {loaded.name} are taken"
    assert not services.models.waiting, "a load is waited for"
    budget = services.bodies._budget
    assert budget._free == budget.size, f"{budget.size - budget._free} bytes of bodies are taken"


def check_store(store: Store, copies: Collection[str], blobs: Collection[Digest]) -> None:
    """Check that models and blobs are whole, and that those are there whose requests were answered."""
    assert_valid(store)
    missing = set(copies) - {name.short.removesuffix(":latest") for name in store.names()}
    assert not missing, f"the copies {sorted(missing)} were made and are lost"
    for digest in blobs:
        assert store.blobs.size(digest) is not None, f"{digest} was uploaded and is lost"
