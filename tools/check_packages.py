"""Check the contents of wheels and source packages: `python -m tools.check_packages FILE...`.

A wheel contains the package, the native core and the bundled model, and names its systems. A source package
contains the files that a build needs, and no tests. A size limit catches unintended growth.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

_MEGABYTES = 15  # including 7.4 for the bundled model
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_")
_IN_BOTH = ("chaski/__init__.py", "chaski/py.typed", "chaski/models/guide.gguf")
_IN_SOURCES = ("CMakeLists.txt", "pyproject.toml", "LICENSE", "README.md", "native/include/matmul.h")
# Licenses of code that is compiled into the core.
_LICENSES = ("chaski/licenses/nanobind.txt", "chaski/licenses/robin-map.txt")
_IN_NEITHER = re.compile(r"^(tests|benchmarks|build|\.venv)/|\.pyc$")


def faults(path: Path) -> list[str]:
    """Return a sentence for each fault of a package."""
    is_wheel = path.suffix == ".whl"
    names = _names(path)
    found = [f"{name} is missing" for name in _IN_BOTH if name not in names]
    found += [f"{name} does not belong here" for name in sorted(names) if _IN_NEITHER.search(name)]
    if path.stat().st_size > _MEGABYTES << 20:
        found.append(f"it has {path.stat().st_size >> 20} MB, more than {_MEGABYTES}")
    if is_wheel:
        found += [f"{name} is missing" for name in _LICENSES if name not in names]
        if len([name for name in names if name.startswith("chaski/_native.") and name.endswith(".so")]) != 1:
            found.append("there is not one native core")
        tag = _MANYLINUX.search(path.name)
        if tag and int(tag[1]) > 28:
            found.append(f"it asks for glibc 2.{tag[1]}, which is newer than 2.28")
        if "-linux_" in path.name:
            found.append("it is for this system alone")
    else:
        found += [f"{name} is missing" for name in _IN_SOURCES if name not in names]
    return found


def _names(path: Path) -> set[str]:
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return set(wheel.namelist())
    with tarfile.open(path) as sources:
        return {name.partition("/")[2] for name in sources.getnames()}


def main() -> None:
    """Print each fault; exit with 1 if there is any."""
    all_found = [f"{path}: {fault}" for path in map(Path, sys.argv[1:]) for fault in faults(path)]
    print("\n".join(all_found) or "no faults")
    sys.exit(bool(all_found))


if __name__ == "__main__":
    main()
