"""The sharded backend: several nodes compute one model, by layers or by rows, bit-identical to one node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaski.cluster_key import read_key
from chaski.errors import OptionError
from chaski.ml.backend import BackendOptions, NodesOptions, Override
from chaski.ml.sharded.backend import ShardedBackend
from chaski.ml.sharded.head import Members
from chaski.ml.sharded.nodes import LocalNodes, RemoteNode
from chaski.ml.sharded.session import OpenBackend

__all__ = ["OPTIONS", "ShardedBackend", "open", "open_here"]

OPTIONS = (BackendOptions, NodesOptions)

_SPLITS = ("layers", "rows")


def open(options: BackendOptions, nodes: NodesOptions) -> ShardedBackend:
    """Connect to the nodes and make them members.

    Raises OptionError for missing or bad options, and ClusterError if a node cannot be reached or used.
    """
    if not nodes.addresses:
        raise OptionError(
            "no nodes are named: set CHASKI_NODES to the addresses of nodes that run `chaski shard`, such as "
            "10.0.0.1:11500,10.0.0.2:11500"
        )
    if nodes.split not in _SPLITS:
        raise OptionError(f"a model is split by {' or '.join(_SPLITS)}, not by {nodes.split!r:.50}")
    key = read_key(nodes.key_file)
    members = Members([RemoteNode(*each, key) for each in nodes.addresses], options.flash_attention)
    return ShardedBackend(members, nodes.split, nodes.shares)


def open_here(
    devices: Mapping[str, OpenBackend],
    options: BackendOptions,
    name: str,
    split: str,
    shares: Sequence[float] | None,
    behind_first: int | None = None,
    overrides: Sequence[Override] = (),
    expert_slots: int = 0,
) -> ShardedBackend:
    """Open several devices of this machine as one backend; see `open_together`."""
    members = Members(LocalNodes(devices).nodes, options.flash_attention)
    names = list(devices)
    for each in overrides:
        if each.device not in names:
            raise OptionError(
                f"override_tensor places {each.pattern!r:.100} on {each.device}, which has no other part of "
                f"the model; the devices of the model are {', '.join(names)}"
            )
    known = [(each.pattern, names.index(each.device)) for each in overrides]
    return ShardedBackend(members, split, shares, behind_first, known, name, expert_slots)
