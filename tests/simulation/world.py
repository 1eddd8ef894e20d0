"""A world: the server with its store and workers, clients, and faults, all from one seed."""

from __future__ import annotations

import hashlib
import os
import shutil
from functools import partial
from pathlib import Path
from random import Random

from msgspec.structs import replace

from chaski.address import Address
from chaski.names import Digest
from chaski.server.settings import Settings
from tests.simulation.asks import Ask, Oracle, alike_ask, beam_search, each_kind, random_ask
from tests.simulation.disk import DISK
from tests.simulation.machine import MEMORY
from tests.simulation.processes import Popen, Socket
from tests.simulation.registry import REGISTRY
from tests.simulation.scheduler import SCHEDULER
from tests.simulation.served import PATIENCE, Served, WorldError
from tests.simulation.weights import PULLED, SEES, TUNED, put_models
from tests.tiny_llama import END, EOT

__all__ = ["CONTEXT", "World", "WorldError"]

CONTEXT = 128
# In a hundred steps of each kind of world: questions, changes of the store or of slots, cuts, and faults.
_WEIGHTS = {
    "store": (10, 50, 5, 35),
    "crowd": (55, 2, 15, 18),
    "prefixes": (60, 2, 10, 20),
    "states": (40, 45, 10, 18),
    "all": (55, 10, 10, 18),
}


class World(Served):
    """A server and its clients. `run` does a number of steps, and then lets everything come to its end."""

    def __init__(self, seed: int, folder: Path, oracle: Oracle) -> None:
        SCHEDULER.reset(seed)
        super().__init__(Random(seed + 2), folder, oracle)
        self.faults = self.pulls = 0
        self.named: set[str] = set()
        self.deleted: list[str] = []
        kinds = ("store", "crowd", "prefixes", "states", "all")
        self.about = self.random.choices(kinds, (20, 25, 25, 8, 22))[0]
        MEMORY.reset()
        REGISTRY.begin_world(Random(seed + 4))
        pick = self.random.choice
        SCHEDULER.switch_rate = pick((0.0, 0.02, 0.1, 0.3))
        Socket.part_rate = pick((0.02, 0.1, 0.5))
        for each in (folder, folder.with_name("shadow")):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir(parents=True)
        put_models(folder)
        DISK.use(folder, folder.with_name("shadow"), Random(seed + 3))
        os.environ["OLLAMA_MODELS"] = str(folder)
        most = {"prefixes": 1, "states": 2}.get(self.about, 3)
        os.environ["CHASKI_PREFIX_CACHE"] = pick(("on", "memory", "off")[:most])
        os.environ["CHASKI_PREFIX_CACHE_MEMORY"] = pick(("100KB", "1GB"))
        os.environ["CHASKI_PREFIX_CACHE_DISK"] = pick(("300KB", "1GB"))
        self.settings = Settings(
            address=Address("127.0.0.1", 80),
            context=CONTEXT,
            parallel=pick((1, 2) if self.about == "crowd" else (1, 2, 3)),
            max_loaded=pick((1, 2)),
            max_queue=pick((2, 512, *[512] * (2 if self.about == "crowd" else 0))),
            keep_alive=pick((0.0, 1.0, *[300.0] * (1 if self.about == "crowd" else 5))),
            load_timeout=60.0,
            max_connections=pick((4, 64, 64)),
            read_timeout=pick((2.0, 300.0)),
            states=folder / "slots",
        )
        self.models = (
            ["one", "two"]
            if self.random.random() < (0.5 if self.about == "crowd" else 0.2)
            else [pick(("one", "two"))]
        )
        if "one" in self.models and self.random.random() < 0.5:
            self.models.append(TUNED)
        if self.random.random() < 0.4:
            self.models = [SEES] if self.random.random() < 0.4 else [*self.models, SEES]

    def run(self, steps: int) -> None:
        self._start()
        for number in range(steps):
            SCHEDULER.note(f"step {number}")
            self._step()
            self._check()
        self._finish()

    def rehearse(self) -> None:
        """Send a request of each kind, also to workers that die.

        All modules are then imported before the first world begins.
        """
        self.settings = replace(self.settings, parallel=2, max_queue=512)
        self._start()
        for ask in [*each_kind("one"), *each_kind("two"), *each_kind(TUNED), *each_kind(SEES)]:
            self._send(self._client("POST", ask.path, ask.body), ask)
            SCHEDULER.run_until(self._are_over, PATIENCE, "a request")
        for number in range(8):
            self._change_store()
            self._ask()
            SCHEDULER.run_for(number * 1e-3)
            self._harm_open_requests()
            for worker in list(Popen.running.values()):
                worker.kill()
            SCHEDULER.run_until(self._are_over, PATIENCE, "a request")
            self._check()
        self._finish()

    def _step(self) -> None:
        weights = _WEIGHTS[self.about]
        ask = {"crowd": self._crowd, "prefixes": self._ask_alike}.get(self.about, self._ask)
        change = self._use_slot if self.about == "states" else self._change_store
        actions = (ask, change, self._cut, self._fault)
        self.random.choices((*actions, lambda: None), (*weights, max(0, 100 - sum(weights))))[0]()
        for _ in range(self.random.choice((1, 20, 100, 400))):
            if not SCHEDULER.can_run:
                break
            SCHEDULER.turn()

    def _crowd(self) -> None:
        """Let several clients ask at once, at the worst moments."""
        match self.random.randrange(5):
            case 0 | 1:
                self._ask_twice()
            case 2:
                self._ask_at_expiry()
            case _:
                for _ in range(self.random.choice((2, 8, 24))):
                    ask = random_ask(self.random, self.models, self.settings.parallel or 1)
                    self._ask_for_a_while(ask, 300, 0.6)

    def _ask(self) -> None:
        if self.random.random() < 0.1:
            self._ask_without_end()
        else:
            self._ask_once()

    def _ask_twice(self) -> None:
        """Ask the same a few times, so that it is read together; who asked first may leave."""
        parallel = self.settings.parallel or 1
        ask = random_ask(self.random, self.models, parallel)
        if parallel > 1 and self.random.random() < 0.8:
            ask = beam_search(self.random, self.random.choice(self.models))
        stopped = [each.process for each in Popen.running.values()]
        for process in stopped:
            SCHEDULER.stop(process)
        clients = [self._client("POST", ask.path, ask.body) for _ in range(self.random.choice((2, 3)))]
        for client in clients:
            client.pause = 0.0
            self._send(client, ask)
        SCHEDULER.run_for(2e-3)
        for process in stopped:
            SCHEDULER.resume(process)
        if self.random.random() < 0.8:
            self._in_loop(self._soon, self.random.randrange(30), clients[0].cut)

    def _ask_alike(self) -> None:
        """Let a few clients ask with prompts that have a long beginning in common; some leave."""
        for _ in range(self.random.choice((1, 2, 3))):
            self._ask_for_a_while(alike_ask(self.random, self.random.choice(self.models)), 400)

    def _ask_for_a_while(self, ask: Ask, most: int, share: float = 0.4) -> None:
        """Send a request; this share of all clients leaves after at most that many rounds of the loop."""
        client = self._client("POST", ask.path, ask.body)
        self._send(client, ask)
        if self.random.random() < share:
            self._in_loop(self._soon, self.random.randrange(most), client.cut)

    def _ask_at_expiry(self) -> None:
        """Ask just when the time of a model in memory is over."""
        SCHEDULER.run_until(self._are_over, PATIENCE, "a request")
        timers = [each.timer for each in self.app.state.services.models.loaded if each.timer is not None]
        if not timers:
            self._ask()
            return
        end = self.random.choice(timers).when()
        for _ in range(self.random.choice((1, 4))):
            ask = random_ask(self.random, self.models, self.settings.parallel or 1)
            self._send(self._client("POST", ask.path, ask.body), ask, at=end - 5e-4 * self.random.random())

    def _ask_without_end(self) -> None:
        """Ask for an answer of more than a thousand tokens, and leave."""
        options = {"num_predict": -1, "temperature": 0, "logit_bias": {str(END): -100, str(EOT): -100}}
        body = {"model": self.models[0], "prompt": "the llama", "raw": True, "options": options}
        client = self._client("POST", "/api/generate", body)
        client.leave_after(self.random.choice((1, 2, 5)))
        client.pause = 0.0
        stands_still = any(worker.process.is_stopped for worker in Popen.running.values())
        is_alone = not (self.asked or stands_still)
        self._send(client)
        if is_alone:
            SCHEDULER.run_until(self._are_over, PATIENCE, "a request")
            self._check_idle()

    def _ask_once(self) -> None:
        ask = random_ask(self.random, [*self.models, *sorted(self.pulled)], self.settings.parallel or 1)
        client = self._client("POST", ask.path, ask.body)
        if ask.model in PULLED:
            client.refusals.add(404)  # it may be deleted meanwhile
        self._send(client, ask)

    def _change_store(self) -> None:
        """Copy, pull or delete a model, upload a blob, keep or restore a slot, or look at the store."""
        copies = list(self.copies)
        match self.random.randrange(12):
            case 10 | 11:
                self._pull_after_faults(self.random.choice(PULLED))
            case 0 | 1:
                name = f"copy{len(self.named)}"
                self.named.add(name)
                body = {"source": self.random.choice(self.models), "destination": name}
                self._send(self._client("POST", "/api/copy", body), None, lambda: self.copies.add(name))
            case 2 if copies:
                name = self.random.choice(copies)
                self.copies.remove(name)
                self._send(self._client("DELETE", "/api/delete", {"model": name}))
            case 3:
                data = self.random.randbytes(self.random.choice((10, 100_000)))
                digest = Digest(hashlib.sha256(data).hexdigest())
                done = partial(self.blobs.add, digest)
                self._send(self._client("POST", f"/api/blobs/{digest}", data), None, done)
            case 4 | 5:
                for _ in range(self.random.choice((1, 1, 2))):
                    self._pull(self.random.choice(PULLED))
            case 6:
                name, other = self.random.sample(PULLED, 2)
                if self.random.random() < 0.5:  # its blobs are those of another one, which just arrives
                    self._pull(other)
                    SCHEDULER.run_for(self.random.choice((1e-3, 0.2, 3.0)) * self.random.random())
                self.pulled.discard(name)
                self.deleted.append(name)
                client = self._client("DELETE", "/api/delete", {"model": name})
                client.refusals.add(404)
                self._send(client, deletes=name)
            case 7 | 8:
                self._use_slot()
            case _:
                path = self.random.choice(("/api/tags", "/api/ps", "/metrics", "/slots?model=one"))
                self._send(self._client("GET", path, None))

    def _use_slot(self) -> None:
        """Save the state of a slot, restore it, or erase it. There may be none, or no such file."""
        if self.about == "states":
            SCHEDULER.run_until(self._are_over, PATIENCE, "a request")
        action = self.random.choice(("save", "save", "restore", "restore", "erase"))
        body = {"model": self.random.choice(self.models), "filename": self.random.choice(("a", "a", "b"))}
        path = f"/slots/{self.random.choice((0, 0, 0, 1))}?action={action}"
        client = self._client("POST", path, body)
        client.refusals |= {400, 404, 501}
        self._send(client)

    def _pull_after_faults(self, name: str) -> None:
        """Pull while the registry fails; the client leaves, or the power is cut. Then pull again."""
        REGISTRY.fail(0.5)
        self._pull(name)
        client = self.asked[-1].client
        SCHEDULER.run_for(self.random.choice((0.1, 1.0, 4.0)))
        if self.random.random() < 0.3:
            self._cut_power()
        elif not client.is_over:
            self._in_loop(client.cut)
            SCHEDULER.run_until(lambda: client.is_over, PATIENCE, "a pull")
        REGISTRY.fail(0.0)
        self._pull(name)

    def _pull(self, name: str) -> None:
        """Pull a model. It is there afterwards, unless it was deleted meanwhile or a delete is under way.

        Faults of the registry or the disk before do not matter.
        """
        client = self._client("POST", "/api/pull", {"model": name})
        is_deleted = name in self.strays or any(each.deletes == name for each in self.asked)
        num_deleted = len(self.deleted)
        num_failed = REGISTRY.num_failed + DISK.num_failed

        def note() -> None:
            last = client.replies[-1]
            if last.get("status") == "success":
                self.pulls += 1
                if not is_deleted and name not in self.deleted[num_deleted:]:
                    self.pulled.add(name)
            elif "error" not in last or REGISTRY.num_failed + DISK.num_failed == num_failed:
                raise WorldError(f"the pull of {name} ends with {last}")

        self._send(client, then=note)

    def _cut(self) -> None:
        running = [each.client for each in self.asked if not each.client.is_over]
        if running:
            self._in_loop(self.random.choice(running).cut)

    def _fault(self) -> None:
        """Let something change or go wrong: a worker, the clock, disk, memory, power, or the registry."""
        self.faults += 1
        workers = list(Popen.running.values())
        usual = {"store": 5, "prefixes": 0}.get(self.about)
        match self.random.randrange(11) if usual is None or self.random.random() < 0.5 else usual:
            case 0 if workers:
                self._kill(workers)
                if self.random.random() < 0.5:
                    self._rot()
            case 1 if workers:
                self._harm_open_requests()
                process = self.random.choice(workers).process
                SCHEDULER.stop(process)
                SCHEDULER.run_for(self.random.choice((0.1, 5.0, 100.0)))
                SCHEDULER.resume(process)
            case 2:
                SCHEDULER.wall_offset += self.random.choice((-1e6, -3600.0, 30.0, 3600.0, 1e7))
            case 3:
                DISK.fail(self.random.choice((0.0, 0.1, 0.5, 1.0)))
            case 4:
                MEMORY.free = self.random.choice((10_000, 1_000_000, 1 << 33))
                self._harm_open_requests()
            case 5:
                self._cut_power()
            case 6:
                REGISTRY.fail(self.random.choice((0.0, 0.1, 0.5, 1.0)))
            case 7:
                REGISTRY.publish()
            case 8:
                self._kill_while_asked()
            case 9:
                self._rot()
            case _:
                SCHEDULER.run_for(self.random.choice((0.5, 40.0, 400.0)))

    def _kill_while_asked(self) -> None:
        """Kill a worker while requests are on their way to it, or while their answers come.

        It may have stood still before, so that it has read none of them.
        """
        workers = list(Popen.running.values())
        if workers and self.random.random() < 0.5:
            SCHEDULER.stop(self.random.choice(workers).process)
        for _ in range(self.random.choice((1, 3, 6))):
            self._ask()
        for _ in range(self.random.randrange(300)):
            if SCHEDULER.can_run:
                SCHEDULER.turn()
            is_read = any(each.client.reply and not each.client.is_complete for each in self.asked)
            if is_read and self.random.random() < 0.3:
                break
        self._harm_open_requests()
        if workers := list(Popen.running.values()):
            self._kill([each for each in workers if each.process.is_stopped] or workers)

    def _kill(self, workers: list[Popen]) -> None:
        self._harm_open_requests()
        self.num_killed += 1
        self.random.choice(workers).kill()

    def _rot(self) -> None:
        """Damage or delete some files of the prefix cache, which no answer may show."""
        if blocks := [*self.folder.glob("chaski/prefix-cache/*/*")]:
            DISK.rot(blocks, self.random.randint(1, len(blocks)))
