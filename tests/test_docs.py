"""The docs match the code."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

import chaski
from chaski.chat.options import AnswerOptions
from chaski.cli.main import chaski_command
from chaski.model.registry import ARCHITECTURES
from chaski.runner.channels.asynchronous import AsyncModel
from chaski.sample.options import SamplingOptions
from chaski.store.create import create
from chaski.store.demo import DEMO
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tools.docs import GENERATED

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", GENERATED)
def test_generated_files_are_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == GENERATED[name](), "run `make docs`"


def test_the_architecture_page_names_every_folder() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    folders = {path.parent.name for path in (ROOT / "chaski").glob("*/__init__.py")}
    assert {folder for folder in folders if f"chaski/{folder}" not in page} == set()


TEXTS = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG", "benchmarks/README")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as made by forges and the site."""
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


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_lines_fit_a_window(page: Path) -> None:
    """Rows of tables cannot be broken."""
    lines = enumerate(page.read_text().splitlines(), 1)
    assert [number for number, line in lines if len(line) > 110 and not line.startswith("|")] == []


def test_the_changelog_has_dates_and_is_short() -> None:
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert releases[0].startswith("Unreleased\n")
    for release in releases[1:]:
        assert re.match(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)\n", release), release[:40]
    assert [release[:20] for release in releases if len(release.splitlines()) > 60] == []


def documented() -> Iterator[object]:
    """Yield the objects that the Python pages document."""
    for value in [
        *(getattr(chaski, name) for name in chaski.__all__),
        AsyncModel,
        SamplingOptions,
        AnswerOptions,
    ]:
        yield value
        if isinstance(value, type):
            yield from (member for name, member in inspect.getmembers(value) if not name.startswith("_"))


def test_tables_of_docstrings_can_be_read_as_such() -> None:
    """`docs/conf.py` reads a name and two spaces as a row, and fails on a table with other rows."""
    row = re.compile(r"\w+(?:, \w+)* {2,}\S.*")
    for value in documented():
        lines = (inspect.getdoc(value) or "").splitlines()
        for before, line in itertools.pairwise(lines):
            if row.fullmatch(before) and line.strip() and not line.startswith(" "):
                assert row.fullmatch(line), f"{value}: {line}"


PLACE = re.compile(r"`((?:chaski|native|tests|tools|benchmarks|docs)/[\w./-]+):([\w.:]+)`")


def is_defined(path: Path, name: str) -> bool:
    """Return whether a Python file defines a function, method or table, or a C++ file a function."""
    if path.suffix != ".py":
        return re.search(rf"\b{re.escape(name)}\(", path.read_text()) is not None
    nodes: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [node for node in nodes if isinstance(node, kinds) and node.name == part]
        if not found:
            tables = [node for node in nodes if isinstance(node, ast.Assign)]
            return any(isinstance(name, ast.Name) and name.id == part for t in tables for name in t.targets)
        nodes = found[0].body
    return True


def test_the_life_of_a_request_names_functions_that_exist() -> None:
    page = (ROOT / "docs/request.md").read_text()
    assert re.findall(r"^\*\*(\d+)\.", page, re.MULTILINE) == [str(number) for number in range(1, 13)]
    for step in re.split(r"^\*\*\d+\.", page, flags=re.MULTILINE)[1:]:
        places = PLACE.findall(step)
        assert places, step
        assert [place for place in places if not is_defined(ROOT / place[0], place[1])] == []


def test_where_to_look_is_told_in_three_steps_each() -> None:
    _, *answers = re.split(r"^## ", (ROOT / "docs/where-to-look.md").read_text(), flags=re.MULTILINE)
    assert len(answers) == 3
    for answer in answers:
        assert re.findall(r"^(\d)\.", answer, re.MULTILINE) == ["1", "2", "3"]
        places = PLACE.findall(answer)
        assert places
        assert [place for place in places if not is_defined(ROOT / place[0], place[1])] == []


PATH = re.compile(r"`([\w./-]+/[\w./-]+)(?::[\w.:]+)?`")
FOLDERS = {path.name for path in (ROOT / "chaski").iterdir() if path.is_dir()}


@pytest.mark.parametrize("page", TEXTS[:2] + TEXTS[3:], ids=lambda page: page.stem)
def test_files_that_pages_name_exist(page: Path) -> None:
    """It checks files of the repository, the package, and the tests, with and without their `.py`."""
    for path in PATH.findall(page.read_text()):
        first = path.partition("/")[0]
        is_ours = first in FOLDERS | {"chaski", "native", "tests", "tools", "docs"}
        if is_ours and "NAME" not in path:
            roots = (ROOT, ROOT / "chaski", ROOT / "tests")
            assert any((root / f"{path}{end}").exists() for root in roots for end in ("", ".py")), path


def test_what_the_reference_documents_exists() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        for kind, name in re.findall(r"^\.\. auto(module|class):: (\S+)$", page.read_text(), re.MULTILINE):
            module, _, member = (name, "", "") if kind == "module" else name.rpartition(".")
            found = import_module(module)
            assert not member or hasattr(found, member), f"{page.name}: {name}"


def test_every_page_is_in_the_contents() -> None:
    contents = re.findall(r"```\{toctree\}\n(.*?)```", (ROOT / "docs/index.md").read_text(), re.DOTALL)
    named = [line for part in contents for line in part.splitlines() if line and not line.startswith(":")]
    pages = [page.stem for page in (ROOT / "docs").glob("*.md") if page.stem != "index"]
    assert sorted(named) == sorted(pages)


def test_the_first_page_runs_as_it_is_written(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tiny model in place of the one that `chaski demo` fetches."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    for _ in create(Store(tmp_path), DEMO.name, Recipe(sources=[tiny_llama], parameters={"num_predict": 20})):
        pass
    page = (ROOT / "README.md").read_text()
    code, shown = re.findall(r"```python\n(from dataclasses.*?)```\n\n```text\n(.*?)```", page, re.DOTALL)[0]
    names: dict[str, object] = {"__name__": "__main__"}
    exec(code, names)
    names["model"].close()  # type: ignore[attr-defined]
    *_, size = capsys.readouterr().out.splitlines()
    *others, real_size = shown.splitlines()
    assert ast.literal_eval(size)[1] == 265
    assert ast.literal_eval(real_size) == (4, 49152)
    assert json.loads("".join(others[others.index("{") : others.index("}") + 1])).keys() == {"name", "city"}


def test_the_page_for_switchers_names_what_exists() -> None:
    page = (ROOT / "docs/coming-from.md").read_text()
    commands = (ROOT / "docs/cli.md").read_text()
    variables = (ROOT / "docs/environment.md").read_text()
    rows = [row.split("|") for row in page.splitlines() if row.startswith("|")]
    ours = "\n".join(row[2] for row in rows if len(row) == 4)
    assert [name for name in re.findall(r"CHASKI_\w+", page) if f"`{name}`" not in variables] == []
    assert [name for name in re.findall(r"OLLAMA_\w+", ours) if f"`{name}`" not in variables] == []
    assert [
        name for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", ours) if f" {name}" not in commands
    ] == []
    assert [
        name for name in re.findall(r"`chaski ([a-z]+)", ours) if f"## chaski {name}\n" not in commands
    ] == []


def test_the_repository_is_cloned_from_its_address() -> None:
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
    for name in ("README.md", "docs/installing.md"):
        assert re.findall(r"git clone (\S+)", (ROOT / name).read_text()) == [address], name


def test_no_environment_is_made_where_the_sources_are() -> None:
    """In a checkout, `chaski` is the folder of the package."""
    for page in TEXTS:
        assert re.findall(r"-m venv (?:\./)?chaski\b(?!-)", page.read_text()) == [], page.name


def test_the_first_page_shows_the_model_as_it_is() -> None:
    code = next(re.finditer(r"```python\n(class .*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL))
    assert code[1] in (ROOT / "chaski/model/arch/llama.py").read_text()


def test_the_first_page_counts_the_architectures() -> None:
    assert f"[{len(ARCHITECTURES)} architectures](docs/models.md)" in (ROOT / "README.md").read_text()


def shown_commands(page: str) -> Iterator[list[str]]:
    """Yield the words after `chaski` of each command in a page's blocks of a shell."""
    blocks = re.findall(r"^```(?:console|bash|sh)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    for line in "\n".join([*blocks, *re.findall(r"^    (\S*chaski .*)", page, re.MULTILINE)]).splitlines():
        command = re.match(r"(?:\$ )?(?:\w+=\S* )*(?:\S+/)?chaski +([a-z].*)", line)
        if command and line.startswith(("$ ", ".venv/", "chaski ")):
            ends = re.split(r" (?:[#|<>&;]|&&|2>)(?= |$|/)", f" {command[1]} ")
            yield shlex.split(ends[0].rstrip("\\ "))


@pytest.mark.parametrize("page", TEXTS[:1] + TEXTS[4:], ids=lambda page: page.stem)
def test_commands_of_the_pages_exist_with_their_options(page: Path) -> None:
    outputs = ("listens on http", "version 0")
    for words in shown_commands(page.read_text()):
        if " ".join(words).startswith(outputs):
            continue
        command: click.Command = chaski_command
        context = click.Context(command)
        name, *rest = words
        while isinstance(command, click.Group):
            found = command.get_command(context, name)
            assert found is not None, words
            command, context = found, click.Context(found, parent=context)
            if isinstance(command, click.Group):
                name, *rest = rest
        command.make_context(name, rest, parent=context, resilient_parsing=True)
