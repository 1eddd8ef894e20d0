"""Packages that releases are built with, and those that users install, are pinned with digests."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCKED = ROOT / ".github" / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
_PIN = re.compile(r"^([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?==(\S+)", re.MULTILINE)


def pins(name: str) -> dict[str, str]:
    """Return the pinned version of each package in a file; the last one of several for different Pythons."""
    return dict(_PIN.findall((LOCKED / name).read_text()))


@pytest.mark.parametrize("name", ["build.txt", "release.txt", "installed.txt"])
def test_every_package_has_a_digest(name: str) -> None:
    text = (LOCKED / name).read_text()
    entries = [each for each in re.split(r"\n(?=\S)", text) if not each.startswith("#")]
    assert len(entries) == len(_PIN.findall(text)) > 3
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry
    assert "index-url" not in text


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("build.txt", PROJECT["build-system"]["requires"]),
        ("installed.txt", PROJECT["project"]["dependencies"]),
        ("installed.txt", PROJECT["project"]["optional-dependencies"]["all"]),
    ],
)
def test_pins_are_versions_that_the_package_wants(name: str, wanted: list[str]) -> None:
    found = pins(name)
    for requirement in map(Requirement, wanted):
        assert found[requirement.name] in requirement.specifier, requirement


def test_what_builds_a_release_is_also_among_its_tools() -> None:
    release = pins("release.txt")
    assert {name: release[name] for name in pins("build.txt")} == pins("build.txt")
