"""The plans for described machines that the docs show are those of the planner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.described_machines import MACHINES, Machine, hollow_model, plan
from tools.docs import PLANS, plans_page

KNOWN = json.loads(PLANS.read_text())


def test_every_machine_is_in_the_table() -> None:
    assert [machine.name for machine in MACHINES] == list(KNOWN)
    page = plans_page()
    assert all(f"| {machine.name} | " in page for machine in MACHINES)


@pytest.mark.parametrize("machine", MACHINES[:2], ids=lambda machine: machine.name)
def test_plans_without_cards(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(machine, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES[2:], ids=lambda machine: machine.name)
def test_plans_of_all_machines(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(machine, tmp_path, monkeypatch)


def check(machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    found, known = plan(machine, hollow_model(folder)), dict(KNOWN[machine.name])
    # Working memory depends on the number of threads, and with it the last few tokens of a context.
    assert found.pop("context") == pytest.approx(known.pop("context"), rel=0.05)
    for name in ("in_files", "prefill", "decode"):
        assert found.pop(name) == pytest.approx(known.pop(name), rel=0.05)
    assert found == known
