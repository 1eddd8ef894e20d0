"""The files that deploy a cluster say what the commands and the environment have."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.env import variables
from chaski.server.command import command as command_of_server

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
SECRETS = {"RAY_AUTH_TOKEN": "RAY_AUTH_MODE"}


def containers() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """File, command and environment of each container."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        yield "compose", service["command"][0], service["environment"]
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            yield "kubernetes", container["args"][0], {each["name"]: each for each in container["env"]}


def test_there_are_a_head_and_nodes_in_each() -> None:
    found = [(file, "--head" in command) for file, command, _ in containers()]
    assert found == [("compose", True), ("compose", False), ("kubernetes", True), ("kubernetes", False)]


def test_commands_have_the_options_that_they_use() -> None:
    """Of `chaski serve`, and that every node asks for the token."""
    options = {name for parameter in command_of_server.params for name in parameter.opts}
    for _, command, environment in containers():
        if "--head" in command:
            _, served = command.split("chaski serve")
            assert set(re.findall(r"--[\w-]+", served)) <= options
            assert {"--cluster", "--replicas"} <= set(re.findall(r"--[\w-]+", served))
        assert SECRETS.keys() | set(SECRETS.values()) <= environment.keys()


def test_variables_are_those_of_chaski() -> None:
    known = {variable.name for variable in variables()}
    for _, _, environment in containers():
        own = {name for name in environment if name.startswith(("CHASKI_", "OLLAMA_"))}
        assert own <= known
