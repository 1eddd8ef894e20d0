"""Simulated machines of a cluster: Linux network namespaces with a Ray node in each. Needs root.

The head is outside of them and has no cores. A dead process is started again, as by a supervisor.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["MARK", "NEEDS_RAY", "Nodes", "marked_processes"]

# To import Ray takes seconds, which a run without these tests need not wait for.
NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")

_NETWORK, _PORT, _BRIDGE = "10.77.0", 6390, "chaski-br"
MARK = "CHASKI_TEST_CLUSTER"


class Nodes:
    """A head and several nodes with one core each, until `close`. A start may take `patience` seconds."""

    def __init__(self, number: int, patience: float = 60.0) -> None:
        self.address = f"{_NETWORK}.1:{_PORT}"
        self.number = number
        self._patience = patience
        self.mark = secrets.token_hex(8)
        self._folder = Path(f"/tmp/ck-{self.mark[:6]}")  # paths of sockets are short
        self._starts = 0
        self._starting = threading.Lock()  # starting processes are not killed
        self._is_over = threading.Event()
        self._is_cut = [threading.Event() for _ in range(number)]
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for node in range(number):
            self._add_namespace(node)
        self._start_head()
        for node in range(number):
            self._start(node)
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def kill_raylet(self, node: int) -> bool:
        """End the process of a node; return whether there was one. Ray then ends its workers."""
        with self._starting:
            return self._kill(*self._raylets(node))

    def kill_head(self) -> bool:
        """End the head; return whether there was one. All its state is lost."""
        with self._starting:
            return self._kill(*self._servers(), *self._raylets(None))

    def cut(self, node: int, seconds: float) -> None:
        """Cut the link of a node, wait, and restore it."""
        self._is_cut[node].set()
        _ip("-n", _name(node), "link", "set", "eth0", "down")
        self._is_over.wait(seconds)
        _ip("-n", _name(node), "link", "set", "eth0", "up")
        self._is_cut[node].clear()

    def slow(self, node: int, seconds: float) -> None:
        """Give a node's link a queue in which packets wait for up to 2 s. Later ones are dropped."""
        begin = "tc qdisc replace dev eth0 root tbf rate 400kbit burst 10kb latency 2s"
        self._while(begin.split(), "tc qdisc del dev eth0 root", node, seconds)

    def lose(self, node: int, seconds: float) -> None:
        """Drop a tenth of the packets that reach a node, for some seconds."""
        rule = "table netdev lossy { chain in { type filter hook ingress device eth0 priority 0; "
        rule += "numgen random mod 10 == 0 drop; }; }"
        self._while(["nft", rule], "nft delete table netdev lossy", node, seconds)

    def _while(self, begin: list[str], end: str, node: int, seconds: float) -> None:
        """Run one command in a node, wait, and run another one."""
        inside = ["ip", "netns", "exec", _name(node)]
        subprocess.run([*inside, *begin], check=True)
        self._is_over.wait(seconds)
        subprocess.run([*inside, *end.split()], capture_output=True)  # another one may have ended it

    def close(self) -> None:
        """End everything, and remove the namespaces."""
        self._is_over.set()
        self._thread.join()
        self._kill(*(pid for pid, _ in self._processes()))
        for node in range(self.number):
            # The link ends with its namespace, but only later.
            _ip("link", "del", f"chaski-v{node}")
            _ip("netns", "del", _name(node))
        _ip("link", "del", _BRIDGE)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _add_namespace(self, node: int) -> None:
        name, outside = _name(node), f"chaski-v{node}"
        _ip("netns", "add", name)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", outside, "master", _BRIDGE, "up")
        _ip("-n", name, "addr", "add", f"{_address(node)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _keep(self) -> None:
        while not self._is_over.wait(2.0):
            with self._starting:
                if not (self._servers() and self._raylets(None)):
                    self._start_head()
                for node in range(self.number):
                    if not self._is_cut[node].is_set() and not self._raylets(node):
                        self._start(node)

    def _start_head(self) -> None:
        # A failed start leaves parts of a head that keep the port, and helper processes that would run
        # forever.
        self._kill(*self._of_heads())
        self._starts += 1
        where = ["--node-ip-address", f"{_NETWORK}.1", "--port", str(_PORT)]
        where += ["--temp-dir", f"{self._folder}/{self._starts}"]
        self._ray("--head", *where, "--num-cpus", "0", "--include-dashboard", "false")

    def _start(self, node: int) -> None:
        options = ["--address", self.address, "--node-ip-address", _address(node), "--num-cpus", "1"]
        self._ray(*options, before=["ip", "netns", "exec", _name(node)])

    def _ray(self, *options: str, before: list[str] | None = None) -> None:
        ray = str(Path(sys.executable).with_name("ray"))
        common = ["--object-store-memory", "80000000", "--disable-usage-stats"]
        try:
            done = subprocess.run(
                [*(before or []), ray, "start", *options, *common],
                env=os.environ | {MARK: self.mark, "RAY_AUTH_MODE": "token"},
                cwd="/",
                capture_output=True,
                text=True,
                timeout=self._patience,
            )
        except subprocess.TimeoutExpired as error:
            print(error, file=sys.stderr, flush=True)  # the caller tries again
            return
        if done.returncode:
            print("ray start:", (done.stdout + done.stderr)[-400:], file=sys.stderr, flush=True)

    def _servers(self) -> list[int]:
        return [pid for pid, words in self._processes() if words[0].endswith("/gcs_server")]

    def _of_heads(self) -> list[int]:
        """Return the processes outside of nodes."""
        network = os.stat("/proc/self/ns/net").st_ino
        found = []
        for pid, _ in self._processes():
            with suppress(OSError):
                if os.stat(f"/proc/{pid}/ns/net").st_ino == network:
                    found.append(pid)
        return found

    def _raylets(self, node: int | None) -> list[int]:
        address = f"{_NETWORK}.1" if node is None else _address(node)
        return [
            pid
            for pid, words in self._processes()
            if words[0].endswith("/raylet") and f"--node_ip_address={address}" in words
        ]

    def _processes(self) -> list[tuple[int, list[str]]]:
        return marked_processes(self.mark)

    def _kill(self, *pids: int) -> bool:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + 5
        while any(Path(f"/proc/{pid}/exe").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
        return bool(pids)


def marked_processes(mark: str) -> list[tuple[int, list[str]]]:
    """Return the processes of a cluster started with this MARK, each with its command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                words = (folder / "cmdline").read_text(errors="replace").split("\0")
                found.append((int(folder.name), words))
    return found


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _name(node: int) -> str:
    return f"chaski-{node}"


def _address(node: int) -> str:
    return f"{_NETWORK}.{node + 2}"
