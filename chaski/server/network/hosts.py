"""Names and addresses of hosts: those in Host headers, and those that only this machine can reach."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

__all__ = ["is_loopback", "without_port"]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener at an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_port(host: str) -> str | None:
    """Return the name or address in a Host header, in lower case; None for anything else."""
    try:
        parts = urlsplit(f"//{host}")
        is_plain = not (parts.path or parts.query or parts.fragment or parts.username is not None)
        # Reading the port checks it.
        return (parts.hostname or "").rstrip(".") if is_plain and parts.port != 0 else None
    except ValueError:
        return None
