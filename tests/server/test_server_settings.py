"""The settings of a server: each comes from its variable, and unsafe ones are refused."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from chaski.address import Address
from chaski.cluster.autoscaling import Bounds
from chaski.env import Environment
from chaski.errors import OptionError
from chaski.ml import limits
from chaski.server.settings import Settings


def test_each_setting_comes_from_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    variables = {
        "OLLAMA_HOST": "127.0.0.7:81",
        "OLLAMA_ORIGINS": "https://A.example, app://*",
        "CHASKI_ALLOWED_HOSTS": "b.example",
        "CHASKI_API_KEYS": "user, Other",
        "CHASKI_ADMIN_KEYS": "admin",
        "CHASKI_OPEN": "1",
        "CHASKI_ACCESS_LOG": "log",
        "CHASKI_ADAPTERS": str(tmp_path),
        "CHASKI_STATES": "states",
        "CHASKI_STATES_SIZE": "1GB",
        "CHASKI_FILES": "0",
        "CHASKI_MCP_SERVERS": "http://localhost:8000",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = Settings.of(Environment.read())
    assert found.address == Address("127.0.0.7", 81)
    assert found.origins == ("https://a.example", "app://*")
    assert found.allowed_hosts == ("b.example",)
    assert (found.api_keys, found.admin_keys, found.is_open) == (("user", "Other"), ("admin",), True)
    assert found.access_log == str(tmp_path / "log")
    assert (found.adapters, found.states) == (tmp_path, tmp_path / "states")
    assert (found.states_size, found.files) == (10**9, 0)
    assert found.mcp_servers == ("http://localhost:8000",)


def test_the_rest_is_that_of_the_environment() -> None:
    same = {
        "cluster": "local",
        "shards": (2, 3),
        "split": "rows",
        "gpus": 0.5,
        "keep_alive": 7.0,
        "load_timeout": 8.0,
        "max_loaded": 9,
        "max_queue": 10,
        "context": 11,
        "parallel": 12,
        "header_timeout": 13.0,
        "body_timeout": 14.0,
        "read_timeout": 15.0,
        "grace": 16.0,
        "max_connections": 17,
    }
    given = Environment(
        **same,
        replicas=(2, 5),
        body_memory=3,
        private_registries=("a.example", "b.example"),
        otlp_endpoint="http://here:4318",
    )
    found = Settings.of(given)
    assert {name: getattr(found, name) for name in same} == same
    assert found.replicas == Bounds(2, 5)
    assert found.body_memory == 3 << 20
    assert found.private_registries == {"a.example", "b.example"}
    assert found.traces == "http://here:4318/v1/traces"


def test_what_is_not_set_is_the_default() -> None:
    found = Settings.of(Environment())
    assert found == Settings()
    assert found.address == Address("127.0.0.1", 11434)
    assert not found.has_keys
    assert (found.states_size, found.files, found.max_loaded) == (10 * 10**9, 2 * 10**9, 3)
    assert Settings.of(Environment(load_timeout=0.0)).load_timeout == math.inf
    assert Settings.of(Environment(states_size=0)).states_size == 0


def test_either_kind_of_key_is_a_key() -> None:
    assert Settings(api_keys=("a",)).has_keys
    assert Settings(admin_keys=("a",)).has_keys
    assert not Settings(is_open=True).has_keys


@pytest.mark.parametrize(
    ("host", "keys", "is_refused"),
    [
        ("127.0.0.1", {}, False),
        ("localhost", {}, False),
        ("::1", {}, False),
        ("0.0.0.0", {}, True),
        ("192.168.1.2", {}, True),
        ("a.example", {}, True),
        ("0.0.0.0", {"api_keys": ("a",)}, False),
        ("0.0.0.0", {"admin_keys": ("a",)}, False),
        ("0.0.0.0", {"is_open": True}, False),
    ],
)
def test_other_addresses_want_a_key(host: str, keys: dict[str, object], is_refused: bool) -> None:
    settings = Settings(address=Address(host, 80), **keys)
    if not is_refused:
        settings.check()
        return
    with pytest.raises(OptionError) as error:
        settings.check()
    assert str(error.value) == (
        f"listening on {host} without keys lets anyone who can reach this machine use and change its models; "
        "set CHASKI_API_KEYS or CHASKI_ADMIN_KEYS, or set CHASKI_OPEN=1 to allow it"
    )


def test_the_folder_of_adapters_is_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, tmp_path / "missing"):
        with pytest.raises(OptionError, match=rf"^CHASKI_ADAPTERS is {path}, which is not a folder$"):
            Settings.of(Environment(adapters=str(path)))
    assert Settings.of(Environment(adapters=str(tmp_path))).adapters == tmp_path


@pytest.mark.parametrize(
    ("handles", "connections"),
    [(1, 1), (2, 1), (99, 50), (511, 256), (512, 256), (513, 257), (20_000, 19_744), (None, 65_280)],
)
def test_handles_stay_free_for_files(
    handles: int | None, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "open_files", lambda: handles)
    assert Settings().max_connections == connections
    assert Settings.of(Environment()).max_connections == connections
    assert Settings.of(Environment(max_connections=5)).max_connections == 5
