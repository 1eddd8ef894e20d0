"""How a server reaches Ray, and what it says where it cannot. Needs no Ray."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from chaski.cluster.connection import LOCAL, Cluster
from chaski.cluster.scaling import Bounds
from chaski.errors import ClusterError, MissingPackageError


def test_where_nobody_listens_is_an_error_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ClusterError, match=rf"127.0.0.1:{port} .*nobody takes connections there"):
        Cluster(f"127.0.0.1:{port}", Bounds())
    with pytest.raises(ClusterError, match="nobody takes connections there"):
        Cluster("127.0.0.1:99999", Bounds())


def test_a_missing_ray_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('No module named ray')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackageError, match=r"the extra 'cluster' .*pip install ray\[serve\]$"):
        Cluster(LOCAL, Bounds())


def test_a_process_that_ends_at_once_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("import os; os._exit(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ClusterError, match="the process that talks to Ray has ended"):
        Cluster(LOCAL, Bounds())
