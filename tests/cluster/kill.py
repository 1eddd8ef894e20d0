"""Break a cluster under a server in random ways during streams, and compare them with a plain server's.

    python -m tests.cluster.kill --kills 500 --seed 1
    python -m tests.cluster.kill --kills 50 --models 1 --shards 4 --split rows
    python -m tests.cluster.kill --kills 50 --nodes 0

A server answers streams in several dialects, of several models, with replicas on nodes in network namespaces
(which need root), or with `--nodes 0` on this machine. Meanwhile random processes die or hang and links fail.
Every stream must equal that of a server without a cluster, or be refused by 503 with Retry-After while no
replica of its model runs. It needs the extra `cluster`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chaski.formats.quant import QuantType
from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tests.cluster.faults import Faults
from tests.cluster.nodes import MARK, Nodes
from tests.cluster.streams import DIALECTS, TOKENS, RefusedError, Stream, ask
from tests.tiny_llama import write_tiny_llama

STORED = Path(__file__).parents[1] / "data" / "architectures"
MODELS = ("llama", "gemma3", "qwen35moe", "lfm2", "gpt-oss")
CONTEXT = 1024
# Seconds before a refusal in which no replica may have answered for the model.
_NOTHING = 5.0

Request = tuple[str, str, str]
"""The path, the model and the prompt."""


def main() -> None:
    """Run until so many kills; end with an error if any stream was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0, help="end after so many, whatever was killed")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--models", type=int, default=len(MODELS))
    parser.add_argument("--nodes", type=int, default=4, help="nodes in network namespaces; 0 for none")
    parser.add_argument("--replicas", default="2")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--split", default="layers")
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two faults, on average")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # all started processes end in any case
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    models = MODELS[: arguments.models]
    requests = [
        (path, model, f"story {number}") for path, model, number in product(DIALECTS, models, range(2))
    ]
    with ExitStack() as stack:
        store = Path(stack.enter_context(TemporaryDirectory()))
        for model in models:
            store_model(store, model)
        with server(store, secrets.token_hex(8)) as plain:
            expected = {request: ask(plain, *request) for request in requests}
        nodes, marks = None, [secrets.token_hex(8)]
        if arguments.nodes:
            nodes = Nodes(arguments.nodes)
            stack.callback(nodes.close)
            marks.append(nodes.mark)
        options = ["--cluster", nodes.address if nodes else "local", "--replicas", arguments.replicas]
        options += ["--shards", str(arguments.shards), "--split", arguments.split]
        host = stack.enter_context(server(store, marks[0], *options))
        for model in models:
            ask(host, "/api/generate", model, "story 0")
        faults = Faults(
            nodes, marks, lambda: answering(host), arguments.every, arguments.seed, arguments.shards > 1
        )
        Streams(host, expected, faults, arguments).run()


def store_model(store: Path, name: str) -> None:
    """Store a tiny model whose answers are long and always the same."""
    path = store / f"{name}.gguf"
    if name == "llama":
        write_tiny_llama(path, matrices=QuantType.Q8_0, layers=4, llama__context_length=2 * CONTEXT)
    else:
        path.write_bytes(with_context((STORED / path.name).read_bytes(), 2 * CONTEXT))
    parameters = {"seed": 7, "temperature": 1.0, "ignore_eos": True}
    parameters |= {"num_predict": TOKENS, "num_ctx": CONTEXT}
    for _ in create(Store(store), ModelName.parse(name), Recipe(sources=[path], parameters=parameters)):
        pass


def with_context(gguf: bytes, tokens: int) -> bytes:
    """Return a file whose model has a longer context."""
    begin = gguf.index(b".context_length") + len(b".context_length") + 4  # after the type of the value
    return gguf[:begin] + tokens.to_bytes(4, "little") + gguf[begin + 4 :]


@contextmanager
def server(store: Path, mark: str, *options: str) -> Iterator[str]:
    """Run `chaski serve`; yield its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    own = {"OLLAMA_MODELS": str(store), "OLLAMA_HOST": host, "CHASKI_PREFIX_CACHE": "memory", MARK: mark}
    own |= {"CHASKI_THREADS": "1", "OLLAMA_NUM_PARALLEL": "16", "OLLAMA_KEEP_ALIVE": "-1"}
    own |= {"OLLAMA_MAX_LOADED_MODELS": str(len(MODELS))}
    command = [sys.executable, "-m", "chaski", "serve", *options]
    with subprocess.Popen(command, env=os.environ | own) as process:
        try:
            while True:
                with suppress(OSError):
                    socket.create_connection(host.split(":")).close()
                    break
                assert process.poll() is None, "it says why it ends"
                time.sleep(0.2)
            yield host
        finally:
            process.send_signal(signal.SIGINT)


def answering(host: str) -> list[list[int]]:
    """Return for each loaded model the processes of its replicas that answer."""
    connection = http.client.HTTPConnection(host, timeout=30)
    with suppress(OSError, http.client.HTTPException, ValueError):
        connection.request("GET", "/api/ps")
        shown = json.load(connection.getresponse())["models"]
        return [[replica["pid"] for replica in model.get("replicas", ())] for model in shown]
    return [[]]


class Streams:
    """Streams that run at the same time, and what was wrong with those that ended."""

    def __init__(self, host: str, expected: Mapping[Request, Stream], faults: Faults, arguments: Any) -> None:
        self._host, self._expected, self._faults, self._arguments = host, expected, faults, arguments
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._ended: Counter[str] = Counter()
        self._heard_at: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._wrong: list[str] = []

    def run(self) -> None:
        """Run until so many kills or minutes. Raises AssertionError if a stream was wrong."""
        asking = [
            threading.Thread(target=self._ask, args=(each,), daemon=True)
            for each in range(self._arguments.streams)
        ]
        for each in asking:
            each.start()
        limits = self._arguments
        try:
            with self._faults:
                while self._faults.counts.total() < limits.kills and self._minutes < limits.minutes:
                    time.sleep(10)
                    self._report()
        finally:
            self._is_over.set()
        for each in asking:
            each.join()
        self._report()
        assert not self._wrong, f"{len(self._wrong)} streams are not as they must be"

    @property
    def _minutes(self) -> float:
        return (time.monotonic() - self._began) / 60

    def _report(self) -> None:
        counts = self._faults.counts
        kills = ", ".join(f"{number} {kind}" for kind, number in sorted(counts.items()))
        pauses = ", ".join(f"{model} {pause:.0f}" for model, pause in self._pauses.items())
        print(
            f"{self._minutes:.1f} min: {counts.total()} kills ({kills}); {dict(self._ended)}; "
            f"longest pauses in s: {pauses}; {len(self._wrong)} wrong",
            flush=True,
        )

    def _ask(self, number: int) -> None:
        chance = random.Random(self._arguments.seed * 1000 + number)
        requests: Sequence[Request] = list(self._expected)
        while not self._is_over.is_set():
            self._ask_once(chance.choice(requests))
            self._is_over.wait(chance.uniform(0, 5))

    def _ask_once(self, request: Request) -> None:
        path, model, prompt = request
        began = time.monotonic()

        def heard() -> None:
            self._heard_at[model] = time.monotonic()

        try:
            found = ask(self._host, path, model, prompt, heard)
        except RefusedError as refused:
            silent = time.monotonic() - max(self._heard_at.get(model, 0.0), 0.0)
            if refused.status == 503 and refused.retry_after is not None and silent > _NOTHING:
                self._ended["refused"] += 1
                print(f"{request} after {time.monotonic() - began:.0f} s: {refused}", flush=True)
                self._is_over.wait(min(float(refused.retry_after), 10.0))
            else:
                self._note_wrong(request, f"{refused}; silent for {silent:.1f} s")
        except (OSError, http.client.HTTPException) as error:
            self._note_wrong(request, f"cut off: {error!r}")
        else:
            self._pauses[model] = max(self._pauses.get(model, 0.0), found.pause)
            right = self._expected[request]
            if (found.text, found.ends) == (right.text, right.ends):
                self._ended["as alone"] += 1
            else:
                same = len(os.path.commonprefix([found.text, right.text]))
                sizes = f"{same} equal characters of {len(found.text)} and {len(right.text)}"
                self._note_wrong(request, f"{sizes}; {found.ends} instead of {right.ends}")

    def _note_wrong(self, request: Request, what: str) -> None:
        self._wrong.append(what)
        print(f"WRONG at {self._minutes:.2f} min: {request}: {what}", flush=True)


if __name__ == "__main__":
    main()
