from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from chaski.env import Environment, variables
from chaski.errors import OptionError
from chaski.runner.loading.prefix import prefix_folder


def test_nothing_is_set() -> None:
    assert Environment.read({}) == Environment()
    assert (Environment().context, Environment().parallel, Environment().isa) == (None, None, "auto")


def test_values_are_parsed() -> None:
    values = {
        "OLLAMA_CONTEXT_LENGTH": "8192",
        "OLLAMA_NUM_PARALLEL": " 4 ",
        "OLLAMA_KV_CACHE_TYPE": '"F16"',
        "CHASKI_THREADS": "'2'",
        "CHASKI_ISA": "AVX2",
        "OLLAMA_MODELS": "/models",
        "OLLAMA_NOPRUNE": "1",
        "CHASKI_PRIVATE_REGISTRIES": "Models.lan:5000, ,localhost",
        "OLLAMA_SOMETHING_ELSE": "ignored",
    }
    expected = Environment(
        context=8192,
        parallel=4,
        kv_type="f16",
        threads=2,
        isa="avx2",
        models="/models",
        keeps_unused=True,
        private_registries=("models.lan:5000", "localhost"),
    )
    assert Environment.read(values) == expected


def test_a_switch_is_on_or_off() -> None:
    assert not Environment.read({"OLLAMA_NOPRUNE": "false"}).keeps_unused
    with pytest.raises(OptionError, match="OLLAMA_NOPRUNE = 'maybe' must be 1 or 0, true or false"):
        Environment.read({"OLLAMA_NOPRUNE": "maybe"})


def test_origins_of_mcp_servers_are_exact() -> None:
    """They become part of a header of the page, which must not contain other text."""
    found = Environment.read({"CHASKI_MCP_SERVERS": "http://LocalHost:8000, https://tools.example"})
    assert found.mcp_servers == ("http://localhost:8000", "https://tools.example")
    for bad in (
        "*",
        "https://*.example",
        "http://a/mcp",
        "ws://a",
        "http://a; script-src *",
        "http://[::1]:1",
    ):
        with pytest.raises(OptionError, match=r"CHASKI_MCP_SERVERS = .* must be origins such as"):
            Environment.read({"CHASKI_MCP_SERVERS": bad})


def test_nodes() -> None:
    read = Environment.read({"CHASKI_NODES": "10.0.0.1:11500, [fd00::2]:9,", "CHASKI_SPLIT": "Rows"})
    assert read.nodes == (("10.0.0.1", 11500, None), ("fd00::2", 9, None))
    assert (read.backend, read.split) == ("sharded", "rows")
    read = Environment.read({"CHASKI_NODES": "a:1=2,b:1=0.5", "CHASKI_BACKEND": "cpu"})
    assert read.nodes == (("a", 1, 2.0), ("b", 1, 0.5))
    assert read.backend == "cpu"
    for text in ("a", "a:0", "a:70000", "a:1=0", "a:1=x", "::1:5", "a:1=1,b:1", "a b:1"):
        with pytest.raises(OptionError, match=r"CHASKI_NODES = .* must be addresses"):
            Environment.read({"CHASKI_NODES": text})
    with pytest.raises(OptionError, match="must be layers or rows"):
        Environment.read({"CHASKI_SPLIT": "columns"})


@pytest.mark.parametrize("empty", ["", "  ", '""'])
def test_an_empty_value_is_none(empty: str) -> None:
    assert Environment.read({variable.name: empty for variable in variables()}) == Environment()


@pytest.mark.parametrize("value", ["many", "0", "-1", "1.5", "1e3"])
def test_a_bad_value_is_an_error(value: str) -> None:
    message = f"environment variable OLLAMA_NUM_PARALLEL = {value!r} must be a whole number above 0"
    with pytest.raises(OptionError, match=re.escape(message)):
        Environment.read({"OLLAMA_NUM_PARALLEL": value})


def test_the_table_is_complete() -> None:
    names = [variable.name for variable in variables()]
    assert len(names) == len(set(names))
    assert all(variable.meaning and variable.default for variable in variables())


@pytest.fixture(scope="module")
def shared_folder() -> Path:
    """Return the prefix cache folder of shared fixtures."""
    return prefix_folder()


def test_every_variable_is_read_somewhere() -> None:
    package = Path(__file__).parent.parent / "chaski"
    code = "\n".join(path.read_text() for path in package.rglob("*.py") if path.name != "env.py")
    unread = [each.name for each in fields(Environment) if not re.search(rf"\.{each.name}\b", code)]
    assert unread == []


def test_what_tests_share_keeps_nothing_in_the_users_folders(
    shared_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert tmp_path_factory.getbasetemp() in shared_folder.parents
    assert tmp_path_factory.getbasetemp() in Path.home().parents
