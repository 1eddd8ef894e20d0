"""What a server shows of its cluster: the nodes, and the models that run there."""

from __future__ import annotations

from msgspec import Struct

from chaski.cluster.members import node_label
from chaski.cluster.plan import Amount

__all__ = ["Node", "RunningApplication"]


class Node(Struct, frozen=True):
    """A machine of a cluster: its name, its address, and the cores, memory and GPUs that Ray may use there.

    `memory` and `gpu_memory` (all GPUs together) are in bytes, or 0 if unknown. `free` is what no replica has
    reserved. Ray starts no more replicas on a node that `is_drained`.
    """

    name: str
    address: str
    cpus: int
    memory: int
    gpus: float
    gpu_memory: int
    is_drained: bool = False
    free: Amount = Amount()

    @property
    def label(self) -> str:
        """The label by which replicas name this node."""
        return node_label(self.name, self.address)


class RunningApplication(Struct, frozen=True):
    """The replicas of a model in the cluster, for this server, another one, or none.

    name          of the application of Ray Serve
    model         the model's name; empty if unknown
    wanted_by     the servers that want it
    replicas      replicas that run; `starting` more have no known node
    cores         reserved for each replica, as `memory`, in bytes, on all its nodes together
    seconds_left  seconds after which it is deleted unless a server wants it; None if one does
    """

    name: str
    model: str
    wanted_by: tuple[str, ...]
    replicas: int
    starting: int
    nodes: tuple[str, ...]
    cores: float
    memory: int
    is_leaving: bool
    seconds_left: float | None
