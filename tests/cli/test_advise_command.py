"""`chaski advise` as users run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.formats.quant import QuantType
from chaski.ml.rates import DeviceRates, ProductRates
from tests.store.fake_registry import FakeRegistry
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.usefixtures("own_store")


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = DeviceRates({"": ProductRates(5e6, 1e9)}, 5e6, 1e9, 1e-6)
    monkeypatch.setattr("chaski.runner.choosing.fitting.processor_rates", lambda *_: slow)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, kind in (("Q8_0", QuantType.Q8_0), ("F16", QuantType.F16)):
        write_tiny_llama(tmp_path / f"tiny-{name}.gguf", matrices=kind)
    return tmp_path


def advise(*arguments: object) -> Result:
    return CliRunner().invoke(chaski_command, ["advise", *map(str, arguments)])


def test_a_folder(folder: Path) -> None:
    shown = advise(folder)
    assert shown.exit_code == 0, shown.output
    head, first, second, _, *rest = shown.stdout.splitlines()
    assert head.split() == ["FILE", "SIZE", "FITS", "CONTEXT", "MEMORY", "TOKENS/S", "LOSS"]
    assert first.split()[0] == "Q8_0"
    assert first.endswith("0.0014")
    assert second.split()[0] == "F16"
    assert " yes " in first
    assert max(map(len, shown.stdout.splitlines()[:-1])) <= 80
    said = " ".join(rest)
    assert said.startswith("Recommended: Q8_0, ")
    assert said.endswith(f"chaski run {folder / 'tiny-Q8_0.gguf'}")


def test_json(folder: Path) -> None:
    found = json.loads(advise(folder, "--json", "--context", 64).stdout)
    assert found["recommended"] == str(folder / "tiny-Q8_0.gguf")
    first, second = found["files"]
    assert (first["type"], first["context"], first["fits"]) == ("Q8_0", 64, True)
    assert first["loss"] == {"divergence": 0.001355, "source": "published"}
    assert second["tokens_per_second"] < first["tokens_per_second"]


def test_what_was_measured_here_is_marked(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text("the inn in the other end. " * 9)
    model, reference = folder / "tiny-Q8_0.gguf", folder / "tiny-F16.gguf"
    asked = ["eval", model, text, "--against", reference, "--context", 32, "--json"]
    measured = json.loads(CliRunner().invoke(chaski_command, list(map(str, asked))).stdout)
    shown = advise(folder).stdout
    divergence = measured["comparison"]["divergence"]["value"]
    assert f"{divergence:.4f} *" in shown.splitlines()[1]
    assert "* measured here by chaski eval --against" in shown


def test_a_repository(folder: Path) -> None:
    with FakeRegistry().running() as hub:
        for path in folder.glob("*.gguf"):
            hub.files[path.name] = path.read_bytes()
        shown = advise(f"http://{hub.host}/me/model", "--insecure")
        assert shown.exit_code == 0, shown.output
        assert [line.split()[0] for line in shown.stdout.splitlines()[:3]] == ["FILE", "Q8_0", "F16"]
        assert "me/model:Q8_0" in "".join(shown.stdout.split())
        hub.files = {"README.md": b""}
        refused = advise(f"http://{hub.host}/me/model", "--insecure")
    assert refused.exit_code == 1
    assert "has no GGUF files" in " ".join(refused.stderr.split())


def test_nothing_fits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaski.runner.loading.reservation.available_memory", lambda: 1000)
    monkeypatch.setattr("chaski.runner.choosing.fitting.Estimate.fits", lambda self: False)
    shown = advise(folder)
    assert shown.exit_code == 0
    assert "None of these fits: the smallest needs " in shown.stdout
    assert " no " in shown.stdout.splitlines()[1]


def test_a_name_of_no_model() -> None:
    refused = advise("nothing-here")
    assert refused.exit_code == 1
    assert "no model of that name" in " ".join(refused.stderr.split())


def test_a_model_of_another_engine(folder: Path) -> None:
    path = write_tiny_llama(folder / "strange-Q8_0.gguf", general__architecture="strange")
    shown = advise(path)
    assert shown.exit_code == 0
    assert "None of these runs natively: " in " ".join(shown.stdout.split())
    assert " ? " in shown.stdout.splitlines()[1]
