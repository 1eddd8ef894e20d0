"""The check of packages sees what is missing and what does not belong there."""

from __future__ import annotations

import tarfile
import tomllib
import zipfile
from pathlib import Path

import chaski
from tools.check_packages import faults

ROOT = Path(__file__).parents[1]
CORE = "chaski/_native.cpython-311-x86_64-linux-gnu.so"
COMMON = ("chaski/__init__.py", "chaski/py.typed", "chaski/models/guide.gguf")
SOURCES = ("CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "native/include/matmul.h")


def wheel(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return path


def test_a_whole_wheel(tmp_path: Path) -> None:
    assert faults(wheel(tmp_path / "chaski-1-cp311-cp311-manylinux_2_28_x86_64.whl", *COMMON, CORE)) == []


def test_faults_of_a_wheel(tmp_path: Path) -> None:
    bad = wheel(tmp_path / "chaski-1-cp311-cp311-manylinux_2_36_x86_64.whl", *COMMON[1:], "tests/a.py")
    assert faults(bad) == [
        "chaski/__init__.py is missing",
        "tests/a.py does not belong here",
        "there is not one native core",
        "it asks for glibc 2.36, which is newer than 2.28",
    ]
    alone = wheel(tmp_path / "chaski-1-cp311-cp311-linux_x86_64.whl", *COMMON, CORE)
    assert faults(alone) == ["it is for this system alone"]


def test_a_source_package(tmp_path: Path) -> None:
    path = tmp_path / "chaski-1.tar.gz"
    empty = tmp_path / "empty"
    empty.touch()
    with tarfile.open(path, "w:gz") as archive:
        for name in (*COMMON, *SOURCES[1:], "benchmarks/x.py"):
            archive.add(empty, f"chaski-1/{name}")
    assert faults(path) == ["benchmarks/x.py does not belong here", "CMakeLists.txt is missing"]


def test_the_version_has_one_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["scikit-build"]["metadata"]["version"]["input"] == "chaski/__init__.py"
    assert f"## {chaski.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_unit_is_the_documented_one() -> None:
    assert (ROOT / "deploy" / "chaski.service").read_text() in (ROOT / "docs" / "service.md").read_text()
