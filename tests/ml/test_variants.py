"""Variants of kernels: measured with the products of models, stored in a file, and read again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import chaski
from chaski import __version__, _native
from chaski.cli.main import chaski_command
from chaski.errors import OptionError
from chaski.formats.quant import QuantType
from chaski.ml.cpu import variants
from chaski.ml.cpu.variants import KernelVariants, variants_file
from tests.backends import about_the_processor
from tests.tiny_llama import write_tiny_llama

Q8_0 = int(QuantType.Q8_0)
ISA = _native.isa_names()[-1]
LARGE = 1 << 40
TOKENS = list(range(1, 250))


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use separate files, and count all models as large."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CHASKI_VARIANTS", "measured")
    monkeypatch.setattr(variants, "_LARGE", 0)
    return tmp_path


def keep_one() -> KernelVariants:
    """Write a file with one pick."""
    kept = KernelVariants("measured", ISA, 1)
    assert kept.of(LARGE).pick("Q8_0", "1", _native.variant_names(Q8_0, 1)[-1])
    variants._write(variants_file(), {kept._key: kept.picks()})
    return kept


@about_the_processor
def test_a_model_measures_and_the_next_process_knows(tmp_path: Path) -> None:
    model = chaski.load(write_tiny_llama(tmp_path / "tiny.gguf", matrices=QuantType.Q8_0), context=256)
    before = model.logits(TOKENS)
    end = time.monotonic() + 60
    while not variants_file().exists() and time.monotonic() < end:
        model.logits(TOKENS)
    content = json.loads(variants_file().read_text())
    assert content["version"] == __version__
    (key,) = content["picks"]
    assert key.endswith(f", {ISA}, 1 threads")
    ((type, picks),) = content["picks"][key].items()
    assert picks
    assert set(picks.values()) <= {*_native.variant_names(Q8_0, 20), *_native.variant_names(Q8_0, 249)}
    again = KernelVariants("measured", ISA, 1)
    assert again.picks() == {type: picks}
    assert KernelVariants("measured", ISA, 2).picks() == {}
    assert (model.logits(TOKENS) == before).all()


def test_small_models_have_picks_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_LARGE", 1 << 20)
    kept = keep_one()
    names = _native.variant_names(Q8_0, 1)
    assert kept.of(1 << 19).pick("Q8_0", "1", names[1])
    assert kept.picks() == {"Q8_0": {"1": names[-1]}, "Q8_0 in small models": {"1": names[1]}}
    variants._write(variants_file(), {kept._key: kept.picks()})
    again = KernelVariants("measured", ISA, 1)
    assert again.of(1 << 21).picks() == [("Q8_0", "1", names[-1])]
    assert again.of(1 << 19).picks() == [("Q8_0", "1", names[1])]


def test_picks_of_other_machines_stay(cache_folder: Path) -> None:
    other = {"another, avx2, 8 threads": {"Q4_K": {"1": "none"}}}
    variants._write(variants_file(), other)
    kept = KernelVariants("measured", ISA, 1)
    kept._measured = -1
    kept.keep()
    machines = json.loads(variants_file().read_text())["picks"]
    assert machines == {**other, kept._key: {}}
    assert [path.name for path in variants_file().parent.iterdir()] == ["kernel-variants.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[" * 5000,
        b"[1]",
        b'{"version": "0.0.0"}',
        json.dumps({"version": __version__, "picks": [1]}).encode(),
        json.dumps({"version": __version__, "picks": {"a": [1]}}).encode(),
        json.dumps({"version": __version__, "picks": {"a": {"b": [1]}}}).encode(),
        json.dumps({"version": __version__, "picks": {"a": {"b": {"c": 1}}}}).encode(),
    ],
)
def test_a_damaged_file_counts_as_none(content: bytes) -> None:
    variants_file().parent.mkdir()
    variants_file().write_bytes(content)
    kept = KernelVariants("measured", ISA, 1)
    assert kept.picks() == {}
    kept._measured = -1
    kept.keep()
    assert kept._key in json.loads(variants_file().read_text())["picks"]


def test_names_that_are_not_known_are_left_out() -> None:
    kept = keep_one()
    content = json.loads(variants_file().read_text())
    content["picks"][kept._key] |= {"Q9_9": {"1": "none"}, "Q4_K": {"one": "none", "1": "sideways"}}
    variants_file().write_text(json.dumps(content))
    assert KernelVariants("measured", ISA, 1).picks() == kept.picks()


def test_a_folder_that_cannot_be_written_is_no_error(cache_folder: Path) -> None:
    (cache_folder / "chaski").write_text("a file where the folder should be")
    kept = KernelVariants("measured", ISA, 1)
    kept._measured = -1
    kept.keep()
    assert KernelVariants("measured", ISA, 1).picks() == {}


def test_the_environment_chooses() -> None:
    keep_one()
    first = KernelVariants("first", ISA, 1)
    for type in ("Q8_0", "Q8_0 in small models"):  # so that nothing is left to measure
        assert first.picks()[type]["1"] == _native.variant_names(Q8_0, 1)[0]
    shown = CliRunner().invoke(chaski_command, ["info"], env={"CHASKI_THREADS": "1"}).output
    assert f"1: {_native.variant_names(Q8_0, 1)[-1]}" in shown
    shown = CliRunner().invoke(chaski_command, ["info"], env={"CHASKI_THREADS": "2"}).output
    assert "models measure them while they answer" in shown


@pytest.mark.parametrize("text", ["fastest", "random", "random:x", "random:-1", "measured:1"])
def test_other_words_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_VARIANTS", text)
    with pytest.raises(OptionError, match="CHASKI_VARIANTS"):
        chaski.env.Environment.read()
