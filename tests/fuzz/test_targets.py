"""Each fuzzing target takes its corpus and changes of it: every input is accepted or refused, in time."""

from __future__ import annotations

import random
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from chaski.errors import FormatError
from fuzz import make_corpus
from fuzz.gguf_form import mutate_gguf, parse
from fuzz.mutations import mutate_bytes
from fuzz.running import run_changes
from fuzz.target import CORPUS, Finding, Target, outcome
from fuzz.targets import NAMES, target_of
from tests.tiers import long_unless

_ROOT = Path(__file__).parents[2]
# Changes of each corpus in the default tests; targets that load models take as long as hundreds of others.
_FEW = 60
_LONG = 3000
_SLOW = ("adapter", "draft", "http", "jinja", "model", "multipart", "projector", "go", "registry")


@pytest.fixture(autouse=True)
def no_lasting_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo that targets of requests reach no network."""
    monkeypatch.setattr(socket, "getaddrinfo", socket.getaddrinfo)


def findings(name: str, count: int, folder: Path) -> dict[str, str]:
    report = run_changes(target_of(name), count, 1, 600, folder)
    assert report.executions >= count
    return {place: trace for place, (trace, _) in report.findings.items()}


@pytest.mark.parametrize("name", long_unless(set(NAMES) - set(_SLOW), NAMES))
def test_few_changes(name: str, tmp_path: Path) -> None:
    assert findings(name, _FEW, tmp_path) == {}


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("name", NAMES)
def test_many_changes(name: str, tmp_path: Path) -> None:
    assert findings(name, _LONG // (10 if name in _SLOW else 1), tmp_path) == {}


def test_every_target_has_a_small_corpus_and_a_property() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(NAMES) == make_corpus.MAKERS.keys()
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 300_000
    assert all(target.corpus() and target.property for target in map(target_of, NAMES))


def test_a_violated_property_is_a_finding(tmp_path: Path) -> None:
    """Refusals are none; other errors, false statements and too much time are, one for each place."""

    def check(data: bytes) -> None:
        """It holds."""
        if data == b"refused":
            raise FormatError("no")
        if data == b"endless":
            while True:
                pass
        assert data != b"false", "it does not hold"
        if data == b"fault":
            raise KeyError(data)

    target = Target("some", check, mutate_bytes, seconds=0.05)
    assert outcome(target, b"taken") is True
    assert outcome(target, b"refused") is False
    for data, place in ((b"false", "AssertionError"), (b"fault", "KeyError"), (b"endless", "TooSlowError")):
        found = outcome(target, data)
        assert isinstance(found, Finding)
        assert found.place.startswith(place)


def test_changed_headers_stay_readable() -> None:
    """Most changes of a header are of its meaning, so that they reach the code after the reader."""
    rng, data = random.Random(1), target_of("model").corpus()[-1]
    changed = [mutate_gguf(data, rng) for _ in range(200)]
    assert sum(parse(each) is not None for each in changed) > 180
    assert len(set(changed)) > 150
    assert parse(b"GGUF" + struct.pack("<IQQ", 3, 1, 1)) is None


def test_the_command_repeats_an_input() -> None:
    path = CORPUS / "modelfile" / "all"
    command = [sys.executable, "-m", "fuzz", "modelfile", "--input", str(path)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "accepted")
