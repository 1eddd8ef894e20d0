"""`chaski cluster`: shows and manages the machines that compute the models of a running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from chaski.cli.unknown_words import Commands
from chaski.errors import ClusterError

__all__ = ["command"]


@click.group("cluster", cls=Commands, short_help="Show the machines of a cluster.")
@click.help_option("-h", "--help")
def command() -> None:
    """Show and manage the machines that compute the models of a server with a cluster."""


@command.command("status", short_help="List the nodes, replicas and applications.")
@click.help_option("-h", "--help")
def status() -> None:
    """List the nodes of the cluster with the model replicas on each node, then all applications.

    An application is the replicas of a model with certain options; its name begins with that of the model.
    One that no server wants is an orphan; `chaski cluster remove` deletes it.
    """
    from chaski.cli.layout import table
    from chaski.remote import running_server

    found = running_server().get("/api/ps")
    if "nodes" not in found:
        raise ClusterError("this server has no cluster; chaski serve --cluster starts a server with one")
    rows = _rows(found["nodes"], found["models"])
    head = "NODE", "CPUS", "GPUS", "MEMORY", "MODEL", "REPLICA", "PROCESS", "PLACES"
    click.echo(table([head, *rows], indent=""))
    if applications := found.get("applications"):
        heads = "APPLICATION", "WANTED BY", "REPLICAS", "EACH RESERVES", "STATE"
        click.echo()
        click.echo(table([heads, *map(_application, applications)], indent=""))


@command.command("replace", short_help="Replace all replicas of a model.")
@click.argument("model")
@click.help_option("-h", "--help")
def replace(model: str) -> None:
    """Replace all running replicas of MODEL with new ones, a few at a time.

    Use this after an update of chaski or of a model file. Old replicas finish their answers first, so no
    request fails. If the model has one replica, requests wait until the new one is loaded.
    """
    from chaski.cli.remote_store import transfer
    from chaski.cli.transfer import show_progress
    from chaski.remote import running_server

    show_progress(transfer(running_server(), "/api/cluster/replace", {"model": model}))


@command.command("drain", short_help="Take a node out of use.")
@click.argument("node")
@click.help_option("-h", "--help")
def drain(node: str) -> None:
    """Take NODE, given by name or address, out of use: no more replicas start there.

    Other nodes start replacements for its replicas. The old replicas finish their answers first, so no
    request fails. When the command ends, you can turn the machine off. To use the node again, restart Ray on
    it.
    """
    from chaski.cli.remote_store import transfer
    from chaski.cli.transfer import show_progress
    from chaski.remote import running_server

    show_progress(transfer(running_server(), "/api/cluster/drain", {"node": node}))


@command.command("remove", short_help="Delete an application that no server wants.")
@click.argument("application")
@click.help_option("-h", "--help")
def remove(application: str) -> None:
    """Delete APPLICATION, an orphan that `chaski cluster status` lists, and free its cores and memory.

    An application that a server wants is not deleted; `chaski stop` unloads its model there.
    """
    from chaski.remote import running_server

    running_server().post("/api/cluster/remove", {"application": application})
    click.echo(f"{application} ends")


def _application(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the row of an application."""
    from chaski.cli.layout import file_size

    cores = f"{found['cores']:.2f}".rstrip("0").rstrip(".")
    memory = f", {file_size(found['memory'])}" if found["memory"] else ""
    starting = f", {found['starting']} starting" if found["starting"] else ""
    if found["is_leaving"]:
        state = "ends"
    elif found["seconds_left"] is None:
        state = "wanted"
    else:
        state = f"orphan, ends in {found['seconds_left']:.0f} s"
    return (
        found["name"],
        ", ".join(found["wanted_by"]) or "-",
        f"{found['replicas']}{starting}",
        f"{cores} cores{memory}",
        state,
    )


def _rows(nodes: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return one row per replica and shard, grouped by node, and one row per node without replicas."""
    on_nodes: dict[str, list[tuple[str, ...]]] = {node["label"]: [] for node in nodes}
    for model in models:
        for replica in model.get("replicas", ()):
            taken = f"{replica['answers']} of {replica['places']} taken"
            leaving = ", leaves" if replica["is_leaving"] else ""
            row = model["name"], replica["name"], str(replica["pid"]), taken + leaving
            on_nodes.setdefault(replica["node"], []).append(row)  # a lost node may still have replicas
            for number, (node, pid) in enumerate(replica.get("shards", ())):
                row = model["name"], f"{replica['name']}, shard {number}", str(pid), ""
                on_nodes.setdefault(node, []).append(row)
    drained = {node["label"] for node in nodes if node["is_drained"]}
    has = {node["label"]: (_cores(node), _gpus(node), _memory(node)) for node in nodes}
    return [
        (f"{label}, drained" if label in drained else label, *has.get(label, ("lost", "", "")), *row)
        for label, replicas in on_nodes.items()
        for row in replicas or [("-", "", "", "")]
    ]


def _cores(node: Mapping[str, Any]) -> str:
    """Return the cores of a node, and how many are free."""
    free = f"{node['free']['cores']:.2f}".rstrip("0").rstrip(".")
    return f"{node['cpus']}, {free} free"


def _memory(node: Mapping[str, Any]) -> str:
    """Return the memory of a node, and how much is free."""
    from chaski.cli.layout import file_size

    return f"{file_size(node['memory'])}, {file_size(node['free']['memory'])} free"


def _gpus(node: Mapping[str, Any]) -> str:
    """Return the GPUs of a node, with their total memory if it is known."""
    from chaski.cli.layout import file_size

    number = f"{node['gpus']:g}"
    return f"{number} ({file_size(node['gpu_memory'])})" if node["gpu_memory"] else number
