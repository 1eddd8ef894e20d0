"""Measure what hostile traffic leaves behind in a server: `python -m benchmarks.hostile --minutes 180`.

Hostile clients send changed requests of the fuzzing corpus, bytes that are no HTTP, slow and broken requests,
large bodies, damaged images, and new grammars, prompts and names again and again. They leave in the middle of
answers. Honest clients ask beside them; their answers must not change. Now and then all wait, and memory,
handles and threads of the server and of its models' processes are counted. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import socket
import struct
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter
from typing import Any

from benchmarks.server import HOST, served, wait_until_ready
from fuzz.mutations import mutate_bytes, mutate_json

_ROOT = Path(__file__).parent.parent
_MODEL = "tiny"
_USER, _ADMIN = "a-key-of-a-user", "a-key-of-an-administrator"
_ADMINS = 0.03
"""Share of hostile requests with an administrator's key; these load, unload, copy and delete models."""
_PATIENCE, _QUIET = 60.0, 15.0
_WARM_UP, _ENDS = 2, 3
"""Samples that do not count, since caches still fill, and samples that are compared at each end."""

_RESPONSES = 1000
"""Responses that the server keeps at most."""

_Kind = Callable[["_Client"], Awaitable[None]]


@dataclass(slots=True)
class _Sample:
    """Bytes, handles and threads of the server and of the processes that it started, while nobody asks."""

    minutes: float
    requests: int
    server_bytes: int
    server_handles: int
    server_threads: int
    model_bytes: int
    model_handles: int
    disk_bytes: int
    disk_files: int

    def __str__(self) -> str:
        return (
            f"| {self.minutes:.0f} | {self.requests} | {self.server_bytes / 1e6:.1f} | {self.server_handles} "
            f"| {self.server_threads} | {self.model_bytes / 1e6:.1f} | {self.model_handles} "
            f"| {self.disk_bytes / 1e6:.1f} | {self.disk_files} |"
        )


_HEAD = (
    "| minutes | hostile requests | server, MB | its handles | its threads | processes of models, MB "
    "| their handles | files of the store, MB | files |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


class _Client:
    """One hostile client: each act is a connection of its own."""

    def __init__(self, port: int, seed: int, corpus: list[bytes]) -> None:
        self.random = random.Random(seed)
        self._port, self._corpus = port, corpus
        self.statuses: Counter[int] = Counter()
        self.defects: list[str] = []

    async def act(self) -> None:
        kinds, weights = zip(*_KINDS, strict=True)
        kind: _Kind = self.random.choices(kinds, weights)[0]
        with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await kind(self)

    async def changed_request(self) -> None:
        """Send a request of the corpus with other values."""
        try:
            found = json.loads(mutate_json(self.random.choice(self._corpus), self.random))
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
        headers = found.get("headers") if isinstance(found.get("headers"), dict) else {}
        body = found.get("body")
        sent = body.encode("utf-8", "replace") if isinstance(body, str) else json.dumps(body).encode()
        await self.ask(str(found.get("method", "POST")), str(found.get("path")), sent, headers)

    async def no_http(self) -> None:
        """Send bytes that are no request, or parts of one in a wrong order."""
        openings = (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n",
            b"POST /api/chat HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n",
            b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n" * 40, b"\0" * 3000, b"x" * 200_000,
            b"POST /v1/files HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n",
            b"GET /api/version HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 5000 + b"\r\n",
        )  # fmt: skip
        await self._send_raw(mutate_bytes(self.random.choice(openings), self.random))

    async def part_of_request(self) -> None:
        """Send the beginning of a request, and then nothing, or a byte a second."""
        body = self._chat("Hi")
        whole = self._head("POST", "/api/chat", len(body) + self.random.choice((0, 100, 10**9))) + body
        _, writer = await self._connect()
        writer.write(whole[: self.random.randrange(len(whole))])
        for _ in range(self.random.randrange(12)):
            await asyncio.sleep(1)
            writer.write(b" ")
            await writer.drain()
        self._leave(writer)

    async def left_answer(self) -> None:
        """Ask for a long answer, read a part of it, and leave."""
        text = f"{self.random.random()} how do I use fewer cores?"
        body = self._chat(text, num_predict=self.random.choice((5, 60, 400)))
        reader, writer = await self._connect()
        writer.write(self._head("POST", "/api/chat", len(body)) + body)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.random.choice((0.0, 0.01, 0.1, 1.0))):
                while await reader.read(1 << 16):
                    await asyncio.sleep(self.random.choice((0.0, 0.05)))
        self._leave(writer)

    async def new_rule(self) -> None:
        """Ask for an answer by a schema or grammar that nobody has sent before."""
        names = [f"f{self.random.randrange(10**9)}" for _ in range(self.random.randrange(1, 30))]
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
        body = {"model": _MODEL, "prompt": "{", "stream": False, "options": {"num_predict": 3}}
        rule: Any = schema if self.random.random() < 0.7 else {"type": "string", "pattern": "|".join(names)}
        await self.ask("POST", "/api/generate", json.dumps({**body, "format": rule}).encode())

    async def new_text(self) -> None:
        """Ask about a long text that nobody has sent before; some responses are kept."""
        text = " ".join(str(self.random.random()) for _ in range(self.random.randrange(1, 300)))
        if self.random.random() < 0.5:
            await self.ask("POST", "/api/chat", self._chat(text, num_predict=1))
        else:
            await self.response(text)

    async def response(self, text: str) -> None:
        """Ask about a text, and let the server keep the response."""
        body = {"model": _MODEL, "input": text, "max_output_tokens": 1, "store": True}
        await self.ask("POST", "/v1/responses", json.dumps(body).encode())

    async def new_name(self) -> None:
        """Use names that nobody has used: paths, models, keys, ids, tenants in headers."""
        name = f"n{self.random.randrange(10**12)}"
        method, path, body = self.random.choice((
            ("GET", f"/{name}", {}), (name.upper(), "/api/tags", {}), ("POST", "/api/show", {"model": name}),
            ("GET", f"/v1/responses/{name}", {}), ("GET", f"/v1/files/{name}/content", {}),
            ("POST", "/api/chat", {"model": name, "messages": []}), ("DELETE", f"/v1/batches/{name}", {}),
            ("GET", f"/api/answers/{name}", {}), ("HEAD", f"/api/blobs/sha256:{name}", {}),
        ))  # fmt: skip
        headers = (
            {"Authorization": f"Bearer {name}"} if self.random.random() < 0.3 else {"X-Request-Id": name}
        )
        await self.ask(method, path, json.dumps(body).encode(), headers)

    async def large_body(self) -> None:
        """Send megabytes of text, of lists, or of brackets."""
        size = self.random.choice((100_000, 1_000_000, 5_000_000))
        filling = self.random.choice(
            (b'"' + b"x" * size + b'"', b"[" * size, b"[" + b"1," * (size // 2) + b"1]")
        )
        body = b'{"model": "tiny", "messages": [{"role": "user", "content": ' + filling + b"}]}"
        await self.ask("POST", "/api/chat", body)

    async def damaged_image(self) -> None:
        image = b"\x89PNG\r\n\x1a\n" + self.random.randbytes(self.random.randrange(5000))
        message = {"role": "user", "content": "?", "images": [base64.b64encode(image).decode()]}
        await self.ask("POST", "/api/chat", json.dumps({"model": _MODEL, "messages": [message]}).encode())

    async def file(self) -> None:
        """Upload lines of a batch, some of them wrong, and let it run."""
        line = {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": json.loads(self._chat("Hi")),
        }
        lines = b"\n".join(mutate_json(json.dumps(line).encode(), self.random) for _ in range(5))
        part = b"--cut\r\nContent-Disposition: form-data; name="
        form = part + b'"purpose"\r\n\r\nbatch\r\n' + part + b'"file"; filename="a.jsonl"\r\n\r\n'
        form += lines + b"\r\n--cut--\r\n"
        reply = await self.ask(
            "POST", "/v1/files", form, {"Content-Type": "multipart/form-data; boundary=cut"}
        )
        with suppress(ValueError, KeyError, TypeError):
            batch = {"input_file_id": json.loads(reply)["id"], "endpoint": "/v1/chat/completions"}
            await self.ask("POST", "/v1/batches", json.dumps({**batch, "completion_window": "24h"}).encode())

    async def ask(self, method: str, path: str, body: bytes, headers: dict[str, Any] | None = None) -> bytes:
        """Send a whole request, and return the body of the reply."""
        reader, writer = await self._connect()
        try:
            writer.write(self._head(method, path, len(body), headers) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            reply = await reader.read()
        finally:
            self._leave(writer)
        self.statuses[status] += 1
        if b"internal server error" in reply:
            self.defects.append(f"{method} {path} {headers} {body[:2000]!r}: {reply[:500]!r}")
        return reply

    async def _send_raw(self, data: bytes) -> None:
        reader, writer = await self._connect()
        writer.write(data)
        if self.random.random() < 0.5:
            writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(2):
                await reader.read(1 << 16)
        self._leave(writer)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(HOST, self._port)

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        """Close the connection, sometimes without saying so properly."""
        if self.random.random() < 0.3:
            connection = writer.get_extra_info("socket")
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    def _chat(self, text: str, **options: int) -> bytes:
        body = {"model": _MODEL, "messages": [{"role": "user", "content": text}], "options": options}
        return json.dumps(body).encode()

    def _head(self, method: str, path: str, length: int, headers: dict[str, Any] | None = None) -> bytes:
        key = _ADMIN if self.random.random() < _ADMINS else _USER
        fields = {
            "Host": "localhost", "Content-Length": length, "Content-Type": "application/json",
            "Authorization": f"Bearer {key}", "Connection": "close", **(headers or {}),
        }  # fmt: skip
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "replace")


_KINDS: tuple[tuple[_Kind, int], ...] = (
    (_Client.changed_request, 30),
    (_Client.no_http, 10),
    (_Client.part_of_request, 10),
    (_Client.left_answer, 10),
    (_Client.new_rule, 8),
    (_Client.new_text, 10),
    (_Client.new_name, 12),
    (_Client.large_body, 3),
    (_Client.damaged_image, 4),
    (_Client.file, 3),
)


class _Traffic:
    """Hostile and honest clients of one server, which all stop for each sample."""

    def __init__(self, pid: int, port: int, store: Path, clients: int, rate: float, seed: int) -> None:
        self._pid, self._port, self._store = pid, port, store
        corpus = [path.read_bytes() for path in sorted((_ROOT / "fuzz/corpus/http").iterdir())]
        self._clients = [_Client(port, seed * 1000 + number, corpus) for number in range(clients)]
        self._honest = _Client(port, seed, corpus)
        self._pause = clients / rate
        self._may_act = asyncio.Event()
        self._acting = 0
        self._expected: dict[int, Any] = {}
        self.requests = self.honest_answers = 0
        self.failures: list[str] = []
        self._started = monotonic()

    async def run(self, minutes: float, interval: float) -> list[_Sample]:
        """Let clients act for that long; take a sample after each interval in seconds."""
        samples: list[_Sample] = []
        print(_HEAD, flush=True)
        await self._restore_model()
        await self._fill()
        self._started = monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._attack(client)) for client in self._clients]
            tasks += [group.create_task(self._ask_honestly(number)) for number in range(4)]
            while (monotonic() - self._started) / 60 < minutes:
                self._may_act.set()
                await asyncio.sleep(interval)
                self._may_act.clear()
                while self._acting:
                    await asyncio.sleep(0.1)
                await self._restore_model()
                await self._answer(0)  # loads the model if an administrator has unloaded it
                await asyncio.sleep(_QUIET)
                samples.append(self._sample())
                print(samples[-1], flush=True)
            for task in tasks:
                task.cancel()
        return samples

    async def _fill(self) -> None:
        """Let the server keep as many responses as it ever does, which must not look like a leak later."""
        for number in range(0, _RESPONSES, len(self._clients)):
            texts = [f"{number + place} " * 150 for place in range(len(self._clients))]
            pairs = zip(self._clients, texts, strict=True)
            await asyncio.gather(*(client.response(text) for client, text in pairs))

    async def _attack(self, client: _Client) -> None:
        while True:
            await self._may_act.wait()
            started = perf_counter()
            self._acting += 1
            try:
                await client.act()
            finally:
                self._acting -= 1
            self.requests += 1
            await asyncio.sleep(max(0.0, self._pause - (perf_counter() - started)))

    async def _ask_honestly(self, number: int) -> None:
        while True:
            await self._may_act.wait()
            self._acting += 1
            try:
                await self._answer(number)
            finally:
                self._acting -= 1
            await asyncio.sleep(1)

    async def _answer(self, number: int) -> None:
        """Ask one of four questions, whose answer must always be the same."""
        body = {
            "model": _MODEL, "prompt": f"{number}: what is a chaski?", "raw": True, "stream": False,
            "options": {"seed": number, "num_predict": 24},
        }  # fmt: skip
        try:
            found = json.loads(
                await self._honest.ask(
                    "POST", "/api/generate", json.dumps(body).encode(), {"Authorization": f"Bearer {_USER}"}
                )
            )
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            self.failures.append(f"an honest request was not answered: {error!r}")
            return
        if "error" in found:
            if "not found" in found["error"]:
                await self._restore_model()
            elif "unload" not in found["error"] and "busy" not in found["error"]:
                self.failures.append(f"an honest request was refused: {found['error']}")
            return
        self.honest_answers += 1
        if found["response"] != self._expected.setdefault(number, found["response"]):
            self.failures.append(f"question {number} was answered by {found['response']!r}")

    async def _restore_model(self) -> None:
        """Copy the bundled model again if an administrator's key has deleted the copy."""
        body = json.dumps({"source": "guide", "destination": _MODEL}).encode()
        await self._honest.ask("POST", "/api/copy", body, {"Authorization": f"Bearer {_ADMIN}"})

    def _sample(self) -> _Sample:
        others = list(_descendants(self._pid))
        files = [path for path in self._store.rglob("*") if path.is_file()]
        return _Sample(
            (monotonic() - self._started) / 60,
            self.requests,
            _own_bytes(self._pid),
            _handles(self._pid),
            len(os.listdir(f"/proc/{self._pid}/task")),
            sum(map(_own_bytes, others)),
            sum(map(_handles, others)),
            sum(path.stat().st_size for path in files),
            len(files),
        )

    @property
    def statuses(self) -> Counter[int]:
        return sum((client.statuses for client in self._clients), Counter())

    @property
    def defects(self) -> list[str]:
        return [*self.failures, *(defect for client in self._clients for defect in client.defects)]


def _descendants(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started, and those that they have."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            yield child
            yield from _descendants(child)


def _own_bytes(pid: int) -> int:
    """Return the memory that is of no file."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return 1024 * sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem"))


def _handles(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _compared(samples: list[_Sample]) -> str:
    """Return how the last samples differ from the first ones that count."""
    counted = samples[_WARM_UP:] or samples
    first, last = counted[:_ENDS], counted[-_ENDS:]
    lines = []
    for name, field in (
        ("memory of the server, MB", "server_bytes"),
        ("memory of the models' processes, MB", "model_bytes"),
        ("handles of the server", "server_handles"),
        ("handles of the models' processes", "model_handles"),
        ("threads of the server", "server_threads"),
    ):
        scale = 1e6 if field.endswith("bytes") else 1
        before, after = (median(getattr(each, field) for each in part) / scale for part in (first, last))
        lines.append(f"| {name} | {before:.1f} | {after:.1f} |")
    return "\n".join(["| medians of three samples | first | last |\n|---|--:|--:|", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--interval", type=float, default=60, help="seconds between samples")
    parser.add_argument("--clients", type=int, default=48, help="hostile ones")
    parser.add_argument("--rate", type=float, default=60, help="most hostile requests a second")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "OLLAMA_MODELS": folder,
            "CHASKI_API_KEYS": _USER,
            "CHASKI_ADMIN_KEYS": _ADMIN,
            "CHASKI_PREFIX_CACHE_MEMORY": "50MB",  # so that it is full after minutes
            "CHASKI_PREFIX_CACHE_DISK": "100MB",
            "CHASKI_FILES": "8MB",
        }
        with served(8, settings) as (process, port):
            wait_until_ready(port)

            async def run() -> tuple[_Traffic, list[_Sample]]:
                given = arguments.clients, arguments.rate, arguments.seed
                traffic = _Traffic(process.pid, port, Path(folder), *given)
                return traffic, await traffic.run(arguments.minutes, arguments.interval)

            traffic, samples = asyncio.run(run())
    print(_compared(samples))
    replies = ", ".join(f"{status}: {count}" for status, count in sorted(traffic.statuses.items()))
    print(f"{traffic.requests} hostile requests ({replies}), {traffic.honest_answers} honest answers")
    print(*traffic.defects[:20], sep="\n")
    return min(len(traffic.defects), 1)


if __name__ == "__main__":
    raise SystemExit(main())
