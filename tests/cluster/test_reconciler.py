"""The loop that deploys, adopts, unloads and deletes applications, with a simulated Ray Serve."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from chaski.cluster import reconciler
from chaski.cluster.entries import Claim, Entries, Listed
from chaski.cluster.members import Member
from chaski.cluster.memory import NodeMemory
from chaski.cluster.plan import Amount, NodeRoom
from chaski.cluster.reconciler import Reconciler, Seen
from chaski.cluster.replica_options import ReplicaOptions
from chaski.cluster.shared_files import SharedFile

GB = 1_000_000_000


def options(name: str, **changes: Any) -> ReplicaOptions:
    made = ReplicaOptions({"model": SharedFile(f"/models/{name}.gguf", 1)}, {"threads": 1}, places=1)
    return replace(made, **changes)


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


class Cluster:
    """One node with cores, and Serve's applications, which start and end at once unless `held`."""

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self.entries = Entries()
        self.deployed: dict[str, tuple[int, int]] = {}
        self.reserved: dict[str, float] = {}
        self.leaving: set[str] = set()
        self.held: dict[str, threading.Event] = {}
        self.unplaced: list[str] = []
        self.failed: set[str] = set()
        self.is_slow = False  # Ray frees nothing meanwhile
        self.freeing = 0.0

    def seen(self) -> dict[str, Seen]:
        return {
            name: Seen(0 if name in self.failed else number, name in self.leaving, name in self.failed)
            for name, (number, _) in self.deployed.items()
        }

    def deploy(
        self,
        options: ReplicaOptions,
        key: bytes,
        shards: int,
        reserved: Mapping[str, Any],
        number: int,
        generation: int,
    ) -> None:
        if options.label in self.held:
            self.held[options.label].wait(10)
        self.failed.discard(options.model)
        self.deployed[options.model] = number, generation
        self.reserved[options.model] = number * reserved["ray_actor_options"]["num_cpus"]
        self.enter(options.model, generation)

    def enter(self, name: str, generation: int = 0) -> None:
        known: dict[str, Any] = {"address": ("a", 1), "node": "n", "pid": 1, "places": 1}
        self.entries.enter(name, Member(name=f"{name} replica", generation=generation, **known), b"")

    def delete(self, name: str) -> None:
        self.leaving.add(name)
        if name in self.held:
            self.held[name].wait(10)
        self.forget(name)
        self.leaving.discard(name)
        self.deployed.pop(name, None)
        self.freeing += self.reserved.pop(name, 0)

    def forget(self, name: str) -> None:
        self.entries._entries.pop(name, None)

    def fail(self, name: str) -> None:
        """Let all replicas end, after which Serve starts no more."""
        self.failed.add(name)
        self.reserved.pop(name)
        self.forget(name)

    def end_unplaced(self, name: str, listed: Collection[str]) -> None:
        self.unplaced.append(name)

    def rooms(self) -> tuple[list[NodeMemory], list[NodeRoom]]:
        if not self.is_slow:
            self.freeing = 0.0
        used = Amount(sum(self.reserved.values()) + self.freeing)
        used = replace(used, memory=int(used.cores * GB))
        free = Amount(self.cores, 9 * GB) - used
        return [NodeMemory("n", 9, 9 * GB)], [NodeRoom("n", Amount(self.cores, 9 * GB), free)]


class Server:
    """A server with its reconciler. `said` contains what it was told."""

    def __init__(self, cluster: Cluster, name: str = "server") -> None:
        self.cluster = cluster
        self.said: list[dict[str, Any]] = []
        self.models: dict[str, ReplicaOptions] = {}
        self.name = name
        self.key = b""
        self.loop = Reconciler(self, cluster, name, True, self.said.append)

    def renew(self, server: str, claims: Sequence[Claim]) -> Listed:
        return self.cluster.entries.renew(server, claims, b"")

    def forget(self, name: str) -> None:
        self.cluster.forget(name)

    def want(self, *models: ReplicaOptions, generation: int = 0) -> None:
        ended = [name for name in self.models if name not in {each.model for each in models}]
        self.models = {each.model: each for each in models}
        wanted = [{"options": to_builtins(each), "number": 1, "generation": generation} for each in models]
        self.loop.want(wanted, ended)
        self.rounds()

    def rounds(self, number: int = 6) -> None:
        """Run some rounds, with the actions that they start."""
        for _ in range(number):
            self.loop.members()
            self.loop.round(*self.cluster.rooms())
            time.sleep(0.03)

    def told(self, what: str) -> list[Any]:
        return [each[what] for each in self.said if what in each]

    def problem(self, made: ReplicaOptions) -> Any:
        _, members = self.loop.members()
        assert members is not None
        found = members[made.model]
        return next((each["problem"] for each in found if each["problem"]), None)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(1)
    monkeypatch.setattr("chaski.cluster.footprint.host_bytes", lambda options, shards: [GB] * shards)
    monkeypatch.setattr(reconciler, "_SETTLED", 0.0)
    yield made
    for each in made.held.values():
        each.set()


def test_an_idle_model_makes_room_and_a_busy_one_does_not(cluster: Cluster) -> None:
    server, first, second = Server(cluster), options("first"), options("second")
    server.want(first)
    assert list(cluster.deployed) == [first.model]
    server.want(first, second)
    kind, message = server.problem(second)
    assert (kind, message.split(":")[0]) == ("NoReplicaError", "no free cores on any node")
    assert not server.told("unload")
    server.loop.note_idle({first.model: 7.0})
    server.rounds()
    assert server.told("unload")[-1] == [first.model]
    assert server.problem(second) is None
    server.want(second)
    assert server.told("ended") == [first.model]
    assert list(cluster.deployed) == [second.model]


def test_a_model_waits_while_ray_frees_the_place_of_another(cluster: Cluster) -> None:
    server, first, second = Server(cluster), options("first"), options("second")
    server.want(first)
    cluster.is_slow = True
    server.want(second)
    assert not cluster.deployed
    assert server.problem(second) is None
    cluster.is_slow = False
    server.rounds()
    assert list(cluster.deployed) == [second.model]


def test_neither_a_load_nor_an_end_delays_those_of_others(cluster: Cluster) -> None:
    cluster.cores = 3
    server, first, second, third = Server(cluster), options("first"), options("second"), options("third")
    cluster.held = {"second": threading.Event(), first.model: threading.Event()}
    server.want(first, second)
    server.want(second, third)
    assert list(cluster.deployed) == [first.model, third.model]
    server.want(second)
    assert server.told("ended") == [third.model]
    for held in cluster.held.values():
        held.set()
    server.rounds()
    assert list(cluster.deployed) == [second.model]
    assert server.told("ended") == [third.model, first.model]


def test_a_server_that_starts_with_another_option_takes_the_place_of_its_old_replicas(
    cluster: Cluster,
) -> None:
    before, old, new = Server(cluster), options("model"), options("model", places=2)
    before.want(old)
    server = Server(cluster)
    server.rounds()
    assert old.model in cluster.deployed
    (shown,) = server.told("applications")[-1]
    assert (shown["name"], shown["model"], shown["wanted_by"]) == (old.model, "model", ())
    assert 290 < shown["seconds_left"] <= 300
    server.want(new)
    assert list(cluster.deployed) == [new.model]
    (shown,) = server.told("applications")[-1]
    assert (shown["wanted_by"], shown["seconds_left"], shown["cores"]) == (("server",), None, 1.0)


def test_running_replicas_are_adopted_with_their_generation(cluster: Cluster) -> None:
    before, model = Server(cluster), options("model")
    before.want(model, generation=3)
    server = Server(cluster)
    server.want(model)
    assert cluster.deployed == {model.model: (1, 3)}


def test_a_model_is_deployed_again_when_serve_has_given_up_or_forgotten_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "_AGAIN", (0.0, 0.0))
    server, model = Server(cluster), options("model")
    server.want(model)
    assert cluster.deployed == {model.model: (1, 0)}
    for generation in (1, 2):
        cluster.fail(model.model)
        server.rounds()
        assert cluster.deployed == {model.model: (1, generation)}
    del cluster.deployed[model.model]  # by a head without its state, or another server
    del cluster.reserved[model.model]
    server.rounds()
    assert cluster.deployed == {model.model: (1, 2)}


def test_a_cluster_is_calm_while_no_model_is_in_use(cluster: Cluster) -> None:
    server, model = Server(cluster), options("model")
    assert server.loop.is_calm
    server.want(model)
    assert not server.loop.is_calm, "its use is not known yet"
    server.loop.note_idle({model.model: 0.0})
    assert server.loop.is_calm
    server.loop.note_idle({model.model: None})
    assert not server.loop.is_calm


def test_serve_is_not_asked_again_at_once(cluster: Cluster) -> None:
    server, model = Server(cluster), options("model")
    server.want(model)
    cluster.fail(model.model)
    server.rounds()
    assert cluster.deployed == {model.model: (1, 0)}


def test_a_model_is_no_orphan_while_its_needs_are_unknown(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_known = threading.Event()

    def host_bytes(options: ReplicaOptions, shards: int) -> list[int]:
        assert is_known.wait(10)
        return [GB]

    monkeypatch.setattr("chaski.cluster.footprint.host_bytes", host_bytes)
    monkeypatch.setattr(reconciler, "GRACE", 0.0)
    server, model = Server(cluster), options("model")
    cluster.deployed[model.model] = 1, 0
    server.loop.members()  # the last lease, without the model
    server.loop.want([{"options": to_builtins(model), "number": 1, "generation": 0}], [])
    server.loop.round(*cluster.rooms())
    server.rounds()
    assert model.model in cluster.deployed
    is_known.set()
    server.rounds()
    assert cluster.deployed == {model.model: (1, 0)}


def test_orphans_end_after_the_grace_and_by_command(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.cores = 2
    owner, server, model, orphan = Server(cluster, "owner"), Server(cluster), options("model"), "chaski-none"
    cluster.deployed[orphan] = 1, 0
    owner.want(model)
    server.rounds()
    refusal = server.loop.remove(model.model)
    assert refusal is not None
    assert refusal.startswith("owner wants")
    assert "the cluster has" in str(server.loop.remove("chaski-nothing"))
    assert server.loop.remove(orphan) is None
    wait_until(lambda: list(cluster.deployed) == [model.model])
    cluster.deployed[orphan] = 1, 0
    server.rounds()
    assert orphan in cluster.deployed
    monkeypatch.setattr(reconciler, "GRACE", 0.0)
    server.rounds()
    assert list(cluster.deployed) == [model.model], "its owner still wants it"


def test_a_replica_without_a_place_does_not_delay_the_end_of_its_application(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "_PLACED", 0.05)
    server, model = Server(cluster), options("model")
    server.want(model)
    cluster.held = {model.model: threading.Event()}
    server.want()
    assert model.model in cluster.unplaced
    assert not server.told("ended")


def test_a_model_that_fits_on_no_node_has_that_problem(cluster: Cluster) -> None:
    server, model = Server(cluster), options("model", options={"threads": 9})
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr("chaski.cluster.footprint.host_bytes", lambda options, shards: [99 * GB])
        server.want(model)
        kind, message = server.problem(model)
    assert kind == "NoNodeError"
    assert "a replica needs 99.000 GB of memory, and Ray has 9.000 GB on n" in message
    assert not cluster.deployed


def test_missing_nodes_are_a_reason_to_ask_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.cluster.footprint._COMING", -1.0)
    server, model = Server(cluster), options("model", shards=(2, 2))
    server.want(model)
    kind, message = server.problem(model)
    assert (kind, message.split(" (")[0]) == ("NoReplicaError", "a replica takes 2 nodes of 1 cores")
    assert not cluster.deployed
