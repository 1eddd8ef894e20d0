"""The sharded backend: several nodes compute one model, by layers or by rows, with the bits of one node."""

from __future__ import annotations

from chaski.errors import OptionError
from chaski.ml.backend import BackendOptions, NodesOptions
from chaski.ml.sharded.backend import ShardedBackend
from chaski.ml.sharded.head import Members
from chaski.ml.sharded.keys import read_key

__all__ = ["OPTIONS", "ShardedBackend", "open"]

OPTIONS = (BackendOptions, NodesOptions)

_SPLITS = ("layers", "rows")


def open(options: BackendOptions, nodes: NodesOptions) -> ShardedBackend:
    """Connect to the nodes, which are members from now on.

    Raises OptionError for missing or bad options, ClusterError where a node cannot be reached or used.
    """
    if not nodes.addresses:
        raise OptionError(
            "no nodes are named: CHASKI_NODES has the addresses of those that run `chaski shard`, such as "
            "10.0.0.1:11500,10.0.0.2:11500"
        )
    if nodes.split not in _SPLITS:
        raise OptionError(f"a model is split by {' or '.join(_SPLITS)}, not by {nodes.split!r:.50}")
    members = Members(nodes.addresses, read_key(nodes.key_file), options.flash_attention)
    return ShardedBackend(members, nodes.split, nodes.shares)
