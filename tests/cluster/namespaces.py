"""Simulated machines: Linux network namespaces, each with a link of set bandwidth. Needs root."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["Namespaces"]

_NETWORK, _BRIDGE = "10.78.0", "chaski-sw"


class Namespaces:
    """Several machines, each with its own address, until `close`. `rate` is the rate of each link."""

    def __init__(self, number: int, rate: str | None = None) -> None:
        self.number = number
        self._processes: list[subprocess.Popen[str]] = []
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{_NETWORK}.1/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        for node in range(number):
            name, outside = _name(node), f"chaski-w{node}"
            _ip("netns", "add", name)
            _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", outside, "master", _BRIDGE, "up")
            _ip("-n", name, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            if rate is not None:
                limit = ["root", "tbf", "rate", rate, "burst", "128kbit", "latency", "50ms"]
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", "eth0", *limit], check=True)

    def address(self, node: int) -> str:
        """Return the address of a machine."""
        return f"{_NETWORK}.{node + 2}"

    def start(self, node: int, arguments: Sequence[str]) -> subprocess.Popen[str]:
        """Run `python -m chaski` on a machine."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", _name(node), sys.executable, "-m", "chaski", *arguments],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def sent_bytes(self, node: int) -> int:
        """Return the bytes that a machine has sent so far, including headers."""
        shown = subprocess.run(
            ["ip", "-n", _name(node), "-s", "-j", "link", "show", "eth0"],
            check=True,
            capture_output=True,
            text=True,
        )
        found: int = json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]
        return found

    def cut(self, node: int) -> None:
        """Cut the link of a machine."""
        _ip("-n", _name(node), "link", "set", "eth0", "down")

    def close(self) -> None:
        """End everything, and remove the namespaces."""
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
        for node in range(self.number):
            _ip("link", "del", f"chaski-w{node}")  # a namespace and its link disappear only later
            _ip("netns", "del", _name(node))
        _ip("link", "del", _BRIDGE)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _name(node: int) -> str:
    return f"chaski-shard-{node}"
