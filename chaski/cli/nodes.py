"""Options that distribute a model over several nodes: `--nodes` and `--split`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["nodes_options", "with_nodes"]

F = TypeVar("F", bound=Callable[..., Any])


def nodes_options(command: F) -> F:
    """Add the options. Pass their values to `with_nodes`."""
    for option in (
        click.option(
            "--split", metavar="WORD", help="With --nodes: layers or rows.  [default: CHASKI_SPLIT, layers]"
        ),
        click.option(
            "--nodes",
            metavar="ADDRESS[,ADDRESS...]",
            help="Nodes that compute the model together, each a `chaski shard`.  [default: CHASKI_NODES]",
        ),
    ):
        command = option(command)
    return command


def with_nodes(backend: str | None, nodes: str | None, split: str | None) -> str | None:
    """Put the options into the environment, which workers inherit; return the backend for the model."""
    from chaski.env import set_by_option

    set_by_option("--split", "CHASKI_SPLIT", split)
    set_by_option("--nodes", "CHASKI_NODES", nodes)
    return backend if nodes is None else backend or "sharded"
