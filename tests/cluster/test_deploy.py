"""The files in deploy/ match the commands and the environment variables."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaski.cli.cluster import command as command_of_cluster
from chaski.env import variables
from chaski.server.command import command as command_of_server

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
SECRETS = {"RAY_AUTH_TOKEN": "RAY_AUTH_MODE"}


def containers() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Return file, command and environment of each container."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        yield "compose", service["command"][0], service["environment"]
    for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()):
        for container in document["spec"].get("template", {}).get("spec", {}).get("containers", ()):
            yield "kubernetes", container["args"][0], {each["name"]: each for each in container["env"]}


def of_operator() -> dict[str, Any]:
    """Return the settings for KubeRay's operator."""
    *_, cluster, _ = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text())
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    found: dict[str, Any] = cluster
    return found


def pod(template: dict[str, Any]) -> dict[str, Any]:
    """Return a pod without intended differences: the container's command, environment and probes."""
    (container,) = template["spec"]["containers"]
    own = {"args", "env", "ports", "startupProbe", "readinessProbe", "livenessProbe"}
    kept = {name: value for name, value in container.items() if name not in own}
    return template["spec"] | {"containers": [kept]}


def test_the_operators_pods_are_those_without_it() -> None:
    spec = of_operator()["spec"]
    by_hand = [
        document["spec"]["template"]
        for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
        if document["kind"] in ("StatefulSet", "Deployment")
    ]
    (workers,) = spec["workerGroupSpecs"]
    assert [pod(spec["headGroupSpec"]["template"]), pod(workers["template"])] == list(map(pod, by_hand))
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]


def test_the_operators_command_starts_ray_and_asks_for_the_token() -> None:
    cluster = of_operator()
    assert cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    spec = cluster["spec"]
    assert spec["authOptions"] == {"mode": "token"}
    assert tuple(map(int, spec["rayVersion"].split("."))) >= (2, 52, 0)
    options = {name for parameter in command_of_server.params for name in parameter.opts}
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert "$KUBERAY_GEN_RAY_START_CMD" in container["args"][0]
        # The operator's own probes need programs that the image lacks.
        assert {"readinessProbe", "livenessProbe"} <= container.keys()
    (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
    _, served = head["args"][0].split("chaski serve")
    assert {"--cluster", "--replicas"} <= set(re.findall(r"--[\w-]+", served)) <= options
    names = {each["name"] for each in head["env"]}
    assert names - {"POD_IP"} <= {variable.name for variable in variables()}


def test_a_node_is_drained_before_it_ends_and_only_one_at_a_time() -> None:
    """The command exists, sends an admin key, and the budget selects the pods of nodes."""
    templates = {
        "kubernetes": [
            document["spec"]["template"]
            for document in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
            if document["kind"] == "Deployment"
        ],
        "kuberay": [each["template"] for each in of_operator()["spec"]["workerGroupSpecs"]],
    }
    assert "drain" in command_of_cluster.commands
    for file, (template,) in templates.items():
        (container,) = template["spec"]["containers"]
        assert container["lifecycle"]["preStop"]["exec"]["command"][-1] == 'chaski cluster drain "$POD_IP"'
        named = {each["name"] for each in container["env"]}
        assert {"OLLAMA_HOST", "OLLAMA_API_KEY", "POD_IP"} <= named
        *_, budget = yaml.safe_load_all((DEPLOY / f"{file}.yaml").read_text())
        assert (budget["kind"], budget["spec"]["maxUnavailable"]) == ("PodDisruptionBudget", 1)
        selected = budget["spec"]["selector"]["matchLabels"].items()
        # The operator adds its own labels to pods.
        added = {} if file == "kubernetes" else {"ray.io/cluster": "chaski", "ray.io/node-type": "worker"}
        assert selected <= (template["metadata"]["labels"] | added).items()


def hosts(folder: Path, *words: str, refusing: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script with an `ssh` that runs commands locally, and a `ray` that records its calls."""
    for name, text in {
        "ssh": f"""[ "$1" != "{refusing}" ] || exit 255; cd "$HOME/$1" && sh -c "$2" """,
        "ray": """echo "$PWD $* $RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> "$HOME/told" """,
    }.items():
        program = folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    for host in ("one", "two"):
        (folder / host / "bin").mkdir(parents=True, exist_ok=True)
        (folder / host / "bin" / "ray").unlink(missing_ok=True)
        (folder / host / "bin" / "ray").symlink_to(folder / "ray")
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(folder), "CHASKI_VENV": "."}
    environment |= {"RAY_AUTH_TOKEN": "secret", "RAY_AUTH_MODE": ""}
    command = ["sh", str(DEPLOY / "hosts.sh"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)


def test_hosts_join_by_ssh_with_the_token_and_leave(tmp_path: Path) -> None:
    assert hosts(tmp_path, "join", "10.0.0.1:6379", "one", "two").returncode == 0
    told = (tmp_path / "told").read_text().splitlines()
    joined = "start --address 10.0.0.1:6379 token secret"
    assert told == [f"{tmp_path}/one {joined}", f"{tmp_path}/two {joined}"]
    assert hosts(tmp_path, "leave", "two").returncode == 0
    assert (tmp_path / "told").read_text().splitlines()[2].startswith(f"{tmp_path}/two stop")


def test_hosts_that_cannot_be_reached_are_named_behind_the_others(tmp_path: Path) -> None:
    done = hosts(tmp_path, "join", "10.0.0.1:6379", "one", "two", refusing="one")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "these hosts did not join: one"
    assert (tmp_path / "told").read_text().count("start") == 1
    for words in ((), ("join", "10.0.0.1:6379"), ("leave",), ("start", "one")):
        done = hosts(tmp_path, *words)
        assert done.returncode == 2
        assert "usage:" in done.stderr


def test_there_are_a_head_and_nodes_in_each() -> None:
    found = [(file, "--head" in command) for file, command, _ in containers()]
    assert found == [("compose", True), ("compose", False), ("kubernetes", True), ("kubernetes", False)]


def test_commands_have_the_options_that_they_use() -> None:
    """The options of `chaski serve` exist, and every node requires the token."""
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
