"""Memory of several devices: the needs of a model on each, and the device that is too small."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import chaski
from chaski.cli.main import chaski_command
from chaski.errors import OutOfMemoryError
from chaski.formats.gguf import open_gguf
from chaski.ml.backend import DeviceMemory
from tests.foreign import SPLIT, split
from tests.foreign.devices import WORKSPACE, layer_of
from tests.tiny_llama import CONTEXT
from tests.tiny_vision import DATA

FIRST, SECOND = "imaginary:0", "imaginary:1"


def weights_of(path: Path) -> dict[str, int]:
    """Return the bytes of float32 weights by device: layer 0 of two on one, layer 1 on the other."""
    found = {"cpu": 0, FIRST: 0, SECOND: 0}
    with open_gguf(path) as file:
        for tensor in file.tensors.values():
            layer = layer_of(tensor.name)
            found["cpu" if layer is None else [FIRST, SECOND][layer]] += tensor.nbytes
    return found


def test_a_layer_and_its_cache_are_on_one_device(tiny_llama: Path) -> None:
    weights = weights_of(tiny_llama)
    cache = 2 * 4 * CONTEXT * 2 * 16  # keys and values of two heads of 16
    with chaski.load(tiny_llama, backend=SPLIT) as model:
        memory = model.memory()
        assert [held.device for held in memory.devices] == ["cpu", FIRST, SECOND]
        for device in (FIRST, SECOND):
            held = memory.on(device)
            assert (held.weights, held.cache) == (weights[device], cache)
            assert held.plans in (WORKSPACE, 2 * WORKSPACE)
        assert (memory.on("cpu").weights, memory.on("cpu").cache) == (weights["cpu"], 0)
        assert memory.on("elsewhere") == DeviceMemory("elsewhere")
        parts = memory.weights, memory.cache, memory.plans
        assert parts == (sum(weights.values()), 2 * cache, 3 * memory.on("cpu").plans)
        assert memory.total == sum(parts) == sum(held.total for held in memory.devices)
        assert f"GB: 0.00 on cpu, 0.00 on {FIRST}, 0.00 on {SECOND}>" in repr(model)
        assert model.generate("hello", num_predict=3, temperature=0).text


def test_memory_of_one_device_is_no_use_to_another(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with chaski.load(tiny_llama, backend=SPLIT) as model:
        needs = {held.device: held.total for held in model.memory().devices}
    monkeypatch.setattr(split, "SIZES", {FIRST: needs[FIRST], SECOND: needs[SECOND]})
    chaski.load(tiny_llama, backend=SPLIT).close()
    monkeypatch.setattr(split, "SIZES", {FIRST: 1 << 40, SECOND: needs[SECOND] - 1})
    with pytest.raises(OutOfMemoryError) as refused:
        chaski.load(tiny_llama, backend=SPLIT)
    heading, *table = str(refused.value).splitlines()
    size = f"{needs[SECOND] / 1e9:.3f} GB"
    assert heading.startswith(
        f"the model needs {size} on {SECOND}, but {size} of memory are available there;"
    )
    assert [line.strip() for line in table if line.endswith(":")] == ["cpu:", f"{FIRST}:", f"{SECOND}:"]
    assert [line.split(" GB  ")[1] for line in table[table.index(f"  {SECOND}:") + 1 :]] == [
        "weights",
        f"2 layers, all tokens: {CONTEXT} cells",
        "plans",
    ]


def test_every_device_that_is_too_small_is_named(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "SIZES", {FIRST: 2_000_000, SECOND: 1_000_000})
    wanted = (
        rf"needs \d\.\d+ GB on {FIRST}, but 0\.002 GB of memory are available there, "
        rf"and \d\.\d+ GB on {SECOND}, but 0\.001 GB"
    )
    with pytest.raises(OutOfMemoryError, match=wanted):
        chaski.load(tiny_llama, backend=SPLIT, context=1 << 14)


def test_a_draft_model_counts_where_it_is(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        chaski.load(tiny_llama, backend=SPLIT) as alone,
        chaski.load(tiny_llama, backend=SPLIT, draft=tiny_llama) as both,
    ):
        needs = {held.device: held.total for held in alone.memory().devices}
        assert {held.device: held.total for held in both.memory().devices} == {
            device: 2 * num_bytes for device, num_bytes in needs.items()
        }
    monkeypatch.setattr(split, "SIZES", {FIRST: 2 * needs[FIRST], SECOND: 2 * needs[SECOND]})
    chaski.load(tiny_llama, backend=SPLIT, draft=tiny_llama).close()
    monkeypatch.setattr(split, "SIZES", {FIRST: 2 * needs[FIRST] - 1, SECOND: 1 << 40})
    with pytest.raises(OutOfMemoryError, match=rf"GB on {FIRST}, but(.*\n)+.*GB  draft model"):
        chaski.load(tiny_llama, backend=SPLIT, draft=tiny_llama)


def test_images_that_were_encoded_are_memory_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for every backend: `foreign` has no host memory itself, and 64 MB of images are kept."""
    path = DATA / "mistral3.gguf"
    chaski.load(path, backend="foreign", context=64).close()
    monkeypatch.setattr("chaski.runner.loading.reservation.available_memory", lambda: 60_000_000)
    with pytest.raises(OutOfMemoryError, match=r"0\.067 GB on cpu, but 0\.060 GB(.*\n)+  imaginary:\n"):
        chaski.load(path, backend="foreign", context=64)


def test_show_has_a_column_for_each_device(tiny_llama: Path) -> None:
    def rows(*arguments: str) -> dict[str, list[str]]:
        result = CliRunner().invoke(chaski_command, ["show", str(tiny_llama), "--memory", *arguments])
        assert result.exit_code == 0, result.output
        cells = [[cell.strip() for cell in line.split("  ") if cell] for line in result.output.splitlines()]
        return {row[0]: row[1:] for row in cells if row}

    shown = rows("--backend", SPLIT)
    assert shown["layers"] == ["cells", "cpu", FIRST, SECOND]
    assert len(shown["weights"]) == len(shown["all"]) == len(shown["available"]) == 3
    assert shown["available"][1:] == ["17.2 GB", "17.2 GB"]
    assert shown["cache, all tokens"] == ["2", "256", "65.5 kB", "65.5 kB"]
    assert rows()["layers"] == ["cells", "memory"]
    lonely = CliRunner().invoke(chaski_command, ["show", str(tiny_llama), "--backend", SPLIT])
    assert lonely.exit_code == 2
