"""`chaski cluster`: the machines that compute the models of a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from chaski.errors import ClusterError

__all__ = ["command"]


@click.group("cluster", short_help="Show the machines of a cluster.")
@click.help_option("-h", "--help")
def command() -> None:
    """Show the machines that compute the models of the running server, where it has a cluster."""


@command.command("status", short_help="List the nodes, and the replicas that each has.")
@click.help_option("-h", "--help")
def status() -> None:
    """List the nodes of the cluster, and which replicas of which models each of them has."""
    from chaski.cli.layout import table
    from chaski.remote import running_server

    found = running_server().get("/api/ps")
    if "nodes" not in found:
        raise ClusterError("this server has no cluster; chaski serve --cluster starts a server with one")
    rows = _rows(found["nodes"], found["models"])
    head = "NODE", "CPUS", "GPUS", "MEMORY", "MODEL", "REPLICA", "PROCESS", "PLACES"
    click.echo(table([head, *rows], indent=""))


@command.command("replace", short_help="Put new replicas in the place of all.")
@click.argument("model")
@click.help_option("-h", "--help")
def replace(model: str) -> None:
    """Put new replicas of MODEL in the place of all that run, a few at a time.

    So the nodes take up a new version of chaski, or of a file. Replicas that go end their answers first, and
    no request fails; with one replica, requests wait until the new one is loaded.
    """
    from chaski.cli.remote_store import transfer
    from chaski.cli.transfer import show_progress
    from chaski.remote import running_server

    show_progress(transfer(running_server(), "/api/cluster/replace", {"model": model}))


@command.command("drain", short_help="Take a node out of use.")
@click.argument("node")
@click.help_option("-h", "--help")
def drain(node: str) -> None:
    """Take NODE out of use, by its name or its address: no replica starts there any more.

    Other nodes start replicas in the place of its own. Those end their answers first, and no request fails.
    When this is done, the machine can be turned off. It is in use again when its part of Ray is started anew.
    """
    from chaski.cli.remote_store import transfer
    from chaski.cli.transfer import show_progress
    from chaski.remote import running_server

    show_progress(transfer(running_server(), "/api/cluster/drain", {"node": node}))


def _rows(nodes: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return a row for each replica and shard, below its node, and one for each node without any."""
    from chaski.cli.layout import file_size

    on_nodes: dict[str, list[tuple[str, ...]]] = {node["label"]: [] for node in nodes}
    for model in models:
        for replica in model.get("replicas", ()):
            taken = f"{replica['answers']} of {replica['places']} taken"
            leaving = ", leaves" if replica["is_leaving"] else ""
            row = model["name"], replica["name"], str(replica["pid"]), taken + leaving
            on_nodes.setdefault(replica["node"], []).append(row)  # a node may be lost before its replicas are
            for number, (node, pid) in enumerate(replica.get("shards", ())):
                row = model["name"], f"{replica['name']}, shard {number}", str(pid), ""
                on_nodes.setdefault(node, []).append(row)
    drained = {node["label"] for node in nodes if node["is_drained"]}
    has = {node["label"]: (str(node["cpus"]), _gpus(node), file_size(node["memory"])) for node in nodes}
    return [
        (f"{label}, drained" if label in drained else label, *has.get(label, ("lost", "", "")), *row)
        for label, replicas in on_nodes.items()
        for row in replicas or [("-", "", "", "")]
    ]


def _gpus(node: Mapping[str, Any]) -> str:
    """The GPUs of a node, with their memory together where it is known."""
    from chaski.cli.layout import file_size

    number = f"{node['gpus']:g}"
    return f"{number} ({file_size(node['gpu_memory'])})" if node["gpu_memory"] else number
