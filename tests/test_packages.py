"""The check of packages finds missing and unexpected files; their components are listed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import extra_command
from tools.check_packages import faults
from tools.compiled_in import add_components, core_components, page_components

ROOT = Path(__file__).parents[1]
CORE = (
    "chaski/_native.cpython-311-x86_64-linux-gnu.so",
    "chaski/licenses/nanobind.txt",
    "chaski/licenses/robin-map.txt",
)
COMMON = ("chaski/__init__.py", "chaski/py.typed", "chaski/models/guide.gguf")
SOURCES = ("CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "native/include/matmul.h")


def wheel(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"")
    return path


def test_a_whole_wheel(tmp_path: Path) -> None:
    assert faults(wheel(tmp_path / "chaski-1-cp311-cp311-manylinux_2_28_x86_64.whl", *COMMON, *CORE)) == []


def test_faults_of_a_wheel(tmp_path: Path) -> None:
    bad = wheel(
        tmp_path / "chaski-1-cp311-cp311-manylinux_2_36_x86_64.whl", *COMMON[1:], CORE[1], "tests/a.py"
    )
    assert faults(bad) == [
        "chaski/__init__.py is missing",
        "tests/a.py does not belong here",
        "chaski/licenses/robin-map.txt is missing",
        "there is not one native core",
        "it asks for glibc 2.36, which is newer than 2.28",
    ]
    alone = wheel(tmp_path / "chaski-1-cp311-cp311-linux_x86_64.whl", *COMMON, *CORE)
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
    assert f"## {chaski.__version__} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_name_on_the_package_index_is_not_the_import() -> None:
    """`pip install chaski` installs another project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "chaski-llm"
    assert project["scripts"] == {"chaski": "chaski.cli.main:main"}
    for extra in project["optional-dependencies"]:
        assert extra_command(extra) == f"pip install 'chaski-llm[{extra}]'"
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "tools/guide/topics").glob("*.toml")]
    for page in pages:
        lines = [line for line in page.read_text().splitlines() if re.search(r"pip install '?chaski\[", line)]
        # The guide's questions may use other names.
        assert not [line for line in lines if page.suffix == ".md" or line.startswith("answer")], page


def test_workflows_name_actions_by_their_hashes() -> None:
    found = 0
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        for use in re.findall(r"uses: (.*)", path.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use
            found += 1
    assert found


def test_the_repository_has_one_address() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all(url.startswith(urls["Source"]) for url in urls.values())
    for name in ("SECURITY.md", ".github/ISSUE_TEMPLATE/config.yml"):
        assert f"{urls['Source']}/security/advisories/new" in (ROOT / name).read_text()


@pytest.mark.parametrize("own", ["", "from chaski.errors import ChaskiError\n", None])
def test_another_package_in_its_place_is_named(tmp_path: Path, own: str | None) -> None:
    """The package `chaski` of PyPI overwrites `chaski/__init__.py`, and removes it on uninstall."""
    package = tmp_path / "chaski"
    package.mkdir()
    for path in (ROOT / "chaski").iterdir():
        if path.name != "__init__.py":
            (package / path.name).symlink_to(path)
    if own is not None:
        (package / "__init__.py").write_text(own)
    paths = [str(tmp_path), *(path for path in sys.path if path.endswith("site-packages"))]
    program = f"import sys; sys.path[:0] = {paths}; from chaski.cli.main import main; main()"
    command = [sys.executable, "-S", "-c", program, "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith(f"Error: {package} does not contain")
    assert "pip install --force-reinstall chaski-llm" in result.stderr.replace("\n", " ")


def test_the_unit_is_the_documented_one() -> None:
    assert (ROOT / "deploy" / "chaski.service").read_text() in (ROOT / "docs" / "service.md").read_text()


def test_the_list_of_parts_has_what_the_page_holds() -> None:
    locked = json.loads((ROOT / "web" / "package-lock.json").read_text())["packages"]
    parts = {part["name"]: part for part in page_components()}
    assert {"preact", "katex", "marked", "highlight.js", "@preact/signals-core"} <= set(parts)
    for name, part in parts.items():
        assert part["version"] == locked[f"node_modules/{name}"]["version"]
        assert part["licenses"] == [{"expression": locked[f"node_modules/{name}"]["license"]}]
    assert parts["@preact/signals-core"]["purl"].startswith("pkg:npm/%40preact/signals-core@")


def test_the_list_of_parts_has_what_is_compiled_in(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    folder = tmp_path / "CMakeFiles" / "3.25"
    folder.mkdir(parents=True)
    settings = 'set(CMAKE_CXX_COMPILER_ID "GNU")\nset(CMAKE_CXX_COMPILER_VERSION "12.2.0")\n'
    (folder / "CMakeCXXCompiler.cmake").write_text(settings)
    parts = {part["name"]: part["version"] for part in core_components(tmp_path)}
    assert parts["nanobind"] == metadata.version("nanobind")
    assert parts["libstdc++"] == "12.2.0"
    assert parts["robin-map"].count(".") == 2


def test_added_parts_belong_to_chaski() -> None:
    chaski = {
        "name": "chaski-llm",
        "bom-ref": "chaski-llm==1",
        "externalReferences": [{"url": "file:///wheel"}],
    }
    bom: dict[str, Any] = {
        "components": [chaski],
        "dependencies": [{"ref": "chaski-llm==1", "dependsOn": ["numpy==2"]}],
    }
    add_components(bom, [{"name": "nanobind", "bom-ref": "nanobind@3"}])
    assert [part["name"] for part in bom["components"]] == ["chaski-llm", "nanobind"]
    assert "externalReferences" not in chaski
    assert bom["dependencies"] == [
        {"ref": "chaski-llm==1", "dependsOn": ["nanobind@3", "numpy==2"]},
        {"ref": "nanobind@3"},
    ]
