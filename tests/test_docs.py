"""What the docs say of the code is what the code says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from chaski.model.registry import ARCHITECTURES
from tools.docs import PAGES

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == PAGES[name](), "run `make docs`"


def test_the_architecture_page_names_every_folder() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    folders = {path.parent.name for path in (ROOT / "chaski").glob("*/__init__.py")}
    assert {folder for folder in folders if f"chaski/{folder}" not in page} == set()


TEXTS = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "benchmarks/README")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def headings(page: Path) -> set[str]:
    """The anchors of a page, as forges and the site make them."""
    lines = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
    titles = [line.lstrip("#").strip().lower() for line in lines if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_links_of_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if not path.startswith("https://"):
            other = page.parent / path if path else page
            assert other.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in headings(other), f"{page.name}: {target}"


@pytest.mark.parametrize(
    "page", [page for page in TEXTS if page.stem != "CHANGELOG"], ids=lambda page: page.stem
)
def test_lines_fit_a_window(page: Path) -> None:
    """Rows of tables cannot be broken."""
    lines = enumerate(page.read_text().splitlines(), 1)
    assert [number for number, line in lines if len(line) > 110 and not line.startswith("|")] == []


def test_every_page_is_in_the_contents() -> None:
    contents = re.findall(r"```\{toctree\}\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    named = [line for part in contents for line in part.splitlines() if line and not line.startswith(":")]
    pages = [page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index"]
    assert sorted(named) == sorted(pages)


def test_the_first_page_runs_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    code = next(re.finditer(r"```python\n(import json.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
    names: dict[str, object] = {}
    exec(code[1], names)
    output = capsys.readouterr().out
    assert "--threads" in output
    # The block reads the answer that follows a schema as JSON.
    assert list(ast.literal_eval(output[output.rindex("{") :])) == ["name"]
    names["model"].close()  # type: ignore[attr-defined]


def test_the_first_page_shows_the_model_as_it_is() -> None:
    code = next(re.finditer(r"```python\n(class .*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL))
    assert code[1] in (ROOT / "chaski/model/arch/llama.py").read_text()


def test_the_first_page_names_every_architecture() -> None:
    row = next(re.finditer(r"\| architectures \|(.*)", (ROOT / "README.md").read_text()))[1]
    assert {name for name in ARCHITECTURES if f"`{name}`" not in row} == set()
