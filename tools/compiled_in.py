"""Add the components compiled into the wheel to its SBOM: `python -m tools.compiled_in SBOM BUILD`.

The CycloneDX generator lists only Python packages. The core also contains nanobind, its hash map and the C++
library of the compiler that made the folder BUILD; the page contains npm packages.
"""

from __future__ import annotations

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["add_components", "core_components", "page_components"]

_NOTICES = Path(__file__).parent.parent / "chaski" / "server" / "web" / "LICENSES.txt"
_NOTICE = re.compile(r"(?:^|\n----\n\n)(\S+) (\d\S*) \(([^)\n]+)\)\n")


def add_components(bom: dict[str, Any], components: list[dict[str, Any]]) -> None:
    """Add components as dependencies of chaski, and remove the path of its wheel."""
    chaski = next(component for component in bom["components"] if component["name"] == "chaski-llm")
    chaski.pop("externalReferences", None)
    entry = next(each for each in bom["dependencies"] if each["ref"] == chaski["bom-ref"])
    new = [component["bom-ref"] for component in components]
    bom["components"] += components
    entry["dependsOn"] = sorted({*entry.get("dependsOn", []), *new})
    bom["dependencies"] += [{"ref": name} for name in new]


def page_components() -> list[dict[str, Any]]:
    """Return the packages whose code is in the page, from its license notices."""
    found = _NOTICE.findall(_NOTICES.read_text())
    return [_component(f"pkg:npm/{quote(name)}", name, version, terms) for name, version, terms in found]


def core_components(build: Path) -> list[dict[str, Any]]:
    """Return the components of the native core, from nanobind's headers and the build's compiler."""
    nanobind = metadata.distribution("nanobind")
    policy = nanobind.locate_file("nanobind/ext/robin_map/include/tsl/robin_growth_policy.h")
    numbers = re.findall(r"define TSL_RH_VERSION_\w+ (\d+)", Path(str(policy)).read_text())
    compiler = next(build.glob("CMakeFiles/*/CMakeCXXCompiler.cmake")).read_text()
    settings = dict(re.findall(r'set\((CMAKE_CXX_COMPILER_\w+) "([^"]*)"\)', compiler))
    found = [
        _component("pkg:pypi/nanobind", "nanobind", nanobind.version, "BSD-3-Clause"),
        _component("pkg:github/Tessil/robin-map", "robin-map", ".".join(numbers), "MIT"),
    ]
    if settings["CMAKE_CXX_COMPILER_ID"] == "GNU":
        terms = "GPL-3.0-or-later WITH GCC-exception-3.1"
        version = settings["CMAKE_CXX_COMPILER_VERSION"]
        found.append(_component("pkg:generic/libstdc%2B%2B", "libstdc++", version, terms))
    return found


def _component(place: str, name: str, version: str, terms: str) -> dict[str, Any]:
    url = f"{place}@{version}"
    return {
        "bom-ref": url,
        "licenses": [{"expression": terms}],
        "name": name,
        "purl": url,
        "type": "library",
        "version": version,
    }


def main() -> None:
    """Add the components to the file."""
    path = Path(sys.argv[1])
    bom = json.loads(path.read_text())
    add_components(bom, core_components(Path(sys.argv[2])) + page_components())
    path.write_text(json.dumps(bom, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
