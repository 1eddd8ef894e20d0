"""What the replicas of a model are made of, as the server tells Ray's process and that tells the replicas."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from msgspec import Struct, to_builtins

from chaski.cluster.shared_files import SharedFile

__all__ = ["ReplicaOptions"]


class ReplicaOptions(Struct, frozen=True):
    """What all replicas of a model are made of.

    files    the model's own file, and those of options that are files, by the names of the options
    options  of `chaski.load`
    places   answers that it computes at a time
    host     the address that it listens on; None for that of the node
    shards   the least and the greatest number of nodes that compute a replica together
    split    how they share the model: layers or rows
    gpus     GPUs of a replica, or of each of its nodes; None for one where the cluster has any
    leaving_seconds   the time that answers have to end, when it is to go
    """

    files: dict[str, SharedFile]
    options: dict[str, Any]
    places: int
    host: str | None = None
    shards: tuple[int, int] = (1, 1)
    split: str = "layers"
    gpus: float | None = None
    leaving_seconds: float = 600.0

    @classmethod
    def of(cls, values: dict[str, Any]) -> ReplicaOptions:
        """Return the options that `to_builtins` has made of them."""
        files = {name: SharedFile(**file) for name, file in values["files"].items()}
        return cls(**{**values, "files": files, "shards": tuple(values["shards"])})

    @property
    def model(self) -> str:
        """The name of the model in the cluster; it stands for all of this.

        So a server that was started again finds its replicas.
        """
        said = json.dumps(to_builtins(self), sort_keys=True).encode()
        return f"chaski-{blake2b(said, digest_size=8).hexdigest()}"
