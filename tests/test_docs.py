"""What the docs say of the code is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.docs import PAGES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run `make docs`"


def test_the_architecture_page_names_every_folder() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    folders = {path.parent.name for path in (ROOT / "chaski").glob("*/__init__.py")}
    assert {folder for folder in folders if f"chaski/{folder}" not in page} == set()


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
