"""The options of a model's replicas, passed from the server to Ray's process and on to the replicas."""

from __future__ import annotations

import json
import math
import re
from hashlib import blake2b
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from chaski.cluster.shared_files import SharedFile
from chaski.names import ModelName

__all__ = ["PREFIX", "ReplicaOptions"]

PREFIX = "chaski-"
"""The begin of the names of chaski's applications."""


class ReplicaOptions(Struct, frozen=True):
    """The options common to all replicas of a model.

    files    the model file, and the files given as options, by option name
    options  of `chaski.load`
    places   answers that a replica computes in parallel
    host     the address it listens on; None for the node's address
    shards   minimum and maximum number of nodes that compute a replica together
    split    how nodes divide the model: by layers or rows
    gpus     GPUs of a replica, or of each of its nodes; None uses one if the cluster has any
    sharing  models that share the cores of a node: each reserves its part, and computes with all of them
    per_node maximum replicas of this model on a node
    leaving_seconds  time limit for running answers when a replica ends
    """

    files: dict[str, SharedFile]
    options: dict[str, Any]
    places: int
    host: str | None = None
    shards: tuple[int, int] = (1, 1)
    split: str = "layers"
    gpus: float | None = None
    sharing: int = 1
    per_node: int = 1
    leaving_seconds: float = 600.0

    @classmethod
    def of(cls, values: dict[str, Any]) -> ReplicaOptions:
        """Return the options from their `to_builtins` form."""
        files = {name: SharedFile(**file) for name, file in values["files"].items()}
        return cls(**{**values, "files": files, "shards": tuple(values["shards"])})

    @property
    def reserved_cores(self) -> float:
        """The cores that Ray reserves on each node of a replica. Ray takes fractions only below 1."""
        cores: float = self.options["threads"] / self.sharing
        return cores if cores < 1 else math.floor(cores)

    @property
    def label(self) -> str:
        """The name of the stored model, or else of its file."""
        file = self.files["model"]
        return Path(file.path).stem if file.model is None else ModelName.parse(file.model).short

    @property
    def model(self) -> str:
        """The name of the model in the cluster, derived from what its answers depend on.

        A restarted server thus finds its replicas. The begin of the name helps readers.
        """
        values = to_builtins(self)
        del values["sharing"], values["per_node"]
        said = json.dumps(values, sort_keys=True).encode()
        readable = re.sub(r"[^a-z0-9.]+", "-", self.label.lower())[-40:].strip("-.")
        return f"{PREFIX}{readable}-{blake2b(said, digest_size=8).hexdigest()}"
