"""`chaski fit` as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from chaski.cli.fit import _rows
from chaski.cli.main import chaski_command
from chaski.ml.rates import DeviceRates, ProductRates
from chaski.runner.choosing.fitting import Fit
from chaski.runner.fitting.gpu_rates import is_known
from chaski.runner.loading.files import OpenedModel
from chaski.store.model import find_model
from tests.tiny_llama import CONTEXT

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = DeviceRates({"": ProductRates(5e6, 1e9)}, 5e6, 1e9, 1e-6)
    monkeypatch.setattr("chaski.runner.choosing.fitting.processor_rates", lambda *_: slow)


def fit(*arguments: object) -> Result:
    return CliRunner().invoke(chaski_command, ["fit", *map(str, arguments)])


def test_the_plan_and_its_picture(tiny_llama: Path) -> None:
    shown = fit(tiny_llama, "--context", 64)
    assert shown.exit_code == 0, shown.output
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert lines[0] == "Plan"
    rows = dict(line.split("  ", 1) for line in lines[1:5] if "  " in line)
    assert rows["context"].strip().startswith("64 tokens")
    assert rows["cpu"].strip() == "2 of 2 layers, embeddings, output"
    assert "tokens/s, predicted after 512 tokens" in rows["answer"]
    assert any("█ weights" in line for line in lines)
    assert "Alternatives" in lines
    assert any(line.startswith("4 sequences instead of one") and "times as many" in line for line in lines)


def test_json(tiny_llama: Path) -> None:
    found = json.loads(fit(tiny_llama, "--json", "--context", 64, "--parallel", 2).stdout)
    assert (found["context"], found["parallel"], found["in_files"]) == (64, 2, 0)
    device = found["devices"]["cpu"]
    shown = CliRunner().invoke(
        chaski_command, ["show", str(tiny_llama), "--memory", "--context", "64", "--parallel", "2"]
    )
    assert shown.exit_code == 0
    assert device["weights"] + device["caches"] + device["working"] > device["weights"] > 0
    step = sum(found["seconds_of_a_step"].values())
    assert found["decode_tokens_per_second"] == pytest.approx(2 / step)
    assert all(each["gain"] for each in found["alternatives"])


def test_what_helps_a_model_that_does_not_fit(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = json.loads(fit(tiny_llama, "--json", "--context", CONTEXT).stdout)["devices"]["cpu"]
    needed = whole["weights"] + whole["caches"] + whole["working"]
    free = [needed - 1]
    monkeypatch.setattr("chaski.ml.cpu.backend.available_memory", lambda: free[0])
    refused = fit(tiny_llama, "--context", CONTEXT)
    assert refused.exit_code == 1
    assert "--context 128 fits" in refused.output
    free[0] = whole["weights"] // 2
    refused = fit(tiny_llama, "--context", CONTEXT)
    assert refused.exit_code == 1
    assert "no context fits; a quantization of at most" in refused.output


def test_rates_of_an_unknown_gpu_are_assumed(tiny_llama: Path) -> None:
    plan = Fit.of(OpenedModel.of(find_model(str(tiny_llama))), 64)
    assert "assumed" not in dict(_rows(plan))
    told = dict(_rows(replace(plan, assumed=["Quadro 9"])))["assumed"]
    assert told == "the rates of Quadro 9 are not known: those of a small card"
    assert is_known("NVIDIA GeForce RTX 4060 Laptop GPU")
    assert not is_known("Quadro 9")
