"""Imports go one way, and importing does no work. Both are read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "chaski"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted({path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES})

# Each floor may import itself and the floors before it.
FLOORS = [
    {
        *("errors", "address", "cluster_key", "durations", "env", "exits", "forks", "names"),
        *(
            "options",
            "pasted",
            "progress_bar",
            "regular_files",
            "remote",
            "same_bits",
            "standard_streams",
            "strangers",
            "suggestions",
        ),
    },
    {"formats"},
    {"ml"},
    {"kvcache"},
    {"model"},
    {"chat"},
    {"guide"},
    {"runner"},
    {"cluster"},
]
# Above all floors, and independent of each other: the command line and the server.
TOPS = {"cli", "server"}
# Next to the floors: the modules that these may import, and the modules that may import them.
SIDE_ROOMS = {
    "text": {"errors", "formats"},
    "sample": {"errors", "exits", "formats", "options", "same_bits"},
    "image": {"errors"},
    "receipts": {"errors", "formats", "regular_files", "sample", "store"},
    "batches": {"errors", "formats", "regular_files"},
    "convert": {"errors", "formats", "ml", "model", "regular_files", "text"},
    "store": {
        *(
            "errors",
            "durations",
            "env",
            "names",
            "options",
            "pasted",
            "formats",
            "regular_files",
            "suggestions",
            "text",
            "convert",
        )
    },
}
ABOVE_SIDE_ROOMS = {"chat", "guide", "runner", "cluster"}
# The package's public interface.
FACE = {"__init__", "__main__"}
HEAVY = {
    *(
        "numpy",
        "jinja2",
        "tokenizers",
        "regex",
        "sentencepiece",
        "llguidance",
        "torch",
        "PIL",
        "chaski._native",
    ),
    *("starlette", "uvicorn"),
}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def files_of(name: str) -> list[Path]:
    return [path for path in MODULES if room(path) == name]


def allowed(name: str) -> set[str]:
    if name in SIDE_ROOMS:
        return {name} | SIDE_ROOMS[name]
    if name in TOPS:
        return {name}.union(SIDE_ROOMS, *FLOORS)
    level = next(index for index, floor in enumerate(FLOORS) if name in floor)
    below = set().union(*FLOORS[: level + 1])
    if name in ABOVE_SIDE_ROOMS:
        return below | set(SIDE_ROOMS)
    # A model defines the conversion of pictures to its encoder's input.
    return below | {"image"} if name == "model" else below


@cache
def all_imports(path: Path) -> tuple[str, ...]:
    """Return all imports of a file, including those in functions."""
    return tuple(imports(parsed(path)))


def imports(tree: ast.AST) -> Iterator[str]:
    """Return the full names of all imported modules, and of names imported from a package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("name", sorted(set(ROOMS) - FACE))
def test_imports_go_down(name: str) -> None:
    for path in files_of(name):
        for imported in all_imports(path):
            parts = imported.split(".")
            if parts[0] != "chaski" or parts[1:2] == ["_native"] or imported == "chaski.__version__":
                continue
            assert parts[1] in allowed(name), f"{path} must not import {imported}"


def test_no_files_import_each_other_in_a_circle() -> None:
    """This includes imports at the top, in functions, and for annotations."""
    files = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    files = {name.removesuffix(".__init__"): path for name, path in files.items() if path.parent != PACKAGE}

    def file_of(name: str) -> str:
        while name and name not in files:
            name = name.rpartition(".")[0]
        return name

    needs = {name: {file_of(each) for each in all_imports(path)} - {name, ""} for name, path in files.items()}
    try:
        list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_the_command_line_names_commands_of_the_server_alone() -> None:
    """Only the table of commands, which imports by name, refers to the server's `chaski serve`."""
    texts = [
        node.value
        for path in MODULES
        if room(path) == "cli"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "chaski.server" in node.value
    ]
    assert texts == ["chaski.server.command", "chaski.server.batch_command"]


def test_the_rule_knows_every_room() -> None:
    assert set(ROOMS) - FACE <= TOPS.union(SIDE_ROOMS, *FLOORS)


@pytest.mark.parametrize(
    ("package", "seam"),
    [
        ("guide", "runner/loading/loader.py"),
        ("runner/beams", "runner/generation/sequence_builder.py"),
    ],
)
def test_a_package_is_reached_through_one_file(package: str, seam: str) -> None:
    name = f"chaski.{package.replace('/', '.')}"
    outside = [path for path in MODULES if not path.is_relative_to(PACKAGE / package)]
    users = [path for path in outside if any(f"{each}.".startswith(f"{name}.") for each in all_imports(path))]
    assert [path.relative_to(PACKAGE).as_posix() for path in users] == [seam]


def test_only_some_files_touch_the_native_module() -> None:
    users = [path for path in MODULES if "chaski._native" in all_imports(path)]
    assert {path.relative_to(PACKAGE).parts[:2] for path in users} == {
        ("formats", "codebook_encoders.py"),  # the encoders of blocks with codebooks
        ("formats", "dequantize.py"),  # the codebooks
        ("formats", "quantize.py"),  # the encoders of blocks
        ("formats", "scale_search.py"),  # the search for scales of quantized blocks
        ("ml", "cpu"),
        ("ml", "cuda"),
        ("ml", "rounding.py"),  # which types need super-blocks
        ("ml", "sharded"),  # it lays out their weights
        ("same_bits.py",),  # for the numbers of samplers
        ("text", "tokenizer"),
    }


# Weights and adapters have the same layout on a GPU as on the cpu.
LAID_OUT_ALIKE = ("chaski.ml.cpu.weight_files", "chaski.ml.cpu.adapter_slots")


def test_only_the_factory_imports_a_backend() -> None:
    for path in MODULES:
        own = path.relative_to(PACKAGE).parts[:2]
        for name in all_imports(path):
            if own == ("ml", "cuda") and name.startswith(LAID_OUT_ALIKE):
                continue
            for backend in ("cpu", "cuda", "reference", "sharded"):
                if name.startswith(f"chaski.ml.{backend}") and own != ("ml", backend):
                    assert path == PACKAGE / "ml" / "__init__.py", f"{path} imports {name}"


@pytest.mark.parametrize("name", ROOMS)
def test_importing_does_no_work(name: str) -> None:
    """Modules contain imports, definitions and constants; no other code runs."""
    definitions = (
        ast.Import,
        ast.ImportFrom,
        ast.ClassDef,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.Assign,
        ast.AnnAssign,
    )
    for path in files_of(name):
        for node in parsed(path).body:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_guard = isinstance(node, ast.If) and ast.unparse(node.test) in (
                "TYPE_CHECKING",
                "__name__ == '__main__'",
            )
            assert is_docstring or is_guard or isinstance(node, definitions), f"{path}, line {node.lineno}"


def test_pillow_is_imported_when_an_image_is_opened() -> None:
    for path in MODULES:
        tree = parsed(path)
        top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        assert not [name for name in imports(ast.Module(top, [])) if name.startswith("PIL")], path


@pytest.mark.parametrize(
    "light",
    ["errors.py", "address.py", "durations.py", "env.py", "names.py", "store", "cli", "server/command.py"],
)
def test_light_modules_import_nothing_heavy(light: str) -> None:
    """This concerns imports at the top: commands import their needs when they are called."""
    for path in MODULES:
        if path.relative_to(PACKAGE).is_relative_to(light):
            tree = parsed(path)
            top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            for name in imports(ast.Module(top, [])):
                assert not name.startswith(tuple(HEAVY)), f"{path} imports {name}"
