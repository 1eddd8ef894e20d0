"""How pip is called, and what is read from its log and its messages."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import RegistryError
from chaski.store.pip import Pip

WHEEL = "some_model-1.0-py3-none-any.whl"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    return tmp_path / "calls.json"


def fake_pip(folder: Path, code: str) -> Pip:
    """Return a pip that records how it is called, and then runs some code."""
    script = folder / "pip.py"
    head = f"""
import json, os, sys
seen = {{"argv": sys.argv[1:], "environ": {{**os.environ}}, "cwd": os.getcwd(), "input": sys.stdin.read()}}
json.dump(seen, open({str(folder / "calls.json")!r}, "w"))
def option(name):
    return sys.argv[sys.argv.index(name) + 1]
"""
    script.write_text(head + code)
    return Pip([sys.executable, str(script)])


def called(calls: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(calls.read_text())
    return found


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (f"Found link https://a/b/{WHEEL}#sha256=1 (from x)", f"https://a/b/{WHEEL}"),
        (f"Found link https://a/b/{WHEEL} (from x)", f"https://a/b/{WHEEL}"),
        (f"a\xff\n Found link http://1/{WHEEL}\n Found link http://2/{WHEEL}\n", f"http://1/{WHEEL}"),
        (f"Found link https://a/{WHEEL}.metadata ", None),
        (f"Found link https://a/other-{WHEEL} ", None),
        (f"Found link https://a/{WHEEL.replace('.', '-')} ", None),
        ("", None),
    ],
)
def test_the_address_in_the_log_of_pip(tmp_path: Path, calls: Path, log: str, expected: str | None) -> None:
    pip = fake_pip(
        tmp_path, f"open(option('--log'), 'wb').write({log.encode('latin-1')!r}); print('x'); sys.exit(1)"
    )
    assert pip.address("some-model", WHEEL) == expected
    call = called(calls)
    *rest, log_path = call["argv"]
    assert rest == ["index", "versions", "some-model", "--retries", "1", "--log"]
    assert Path(log_path).parent == Path(call["cwd"])
    assert not Path(call["cwd"]).exists()


def test_pip_without_a_log_has_no_address(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pip = fake_pip(tmp_path, "print('out'); print('err', file=sys.stderr); sys.exit(2)")
    assert pip.address("some-model", WHEEL) is None
    assert capfd.readouterr() == ("", "")
    assert Pip([str(tmp_path / "none")]).address("some-model", WHEEL) is None


def test_a_wheel_is_downloaded_alone(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    folder = tmp_path / "wheels"
    (folder / "unpacked").mkdir(parents=True)
    (folder / "unpacked" / "early.whl").write_bytes(b"123")
    done = tmp_path / "done"
    code = f"""
open(option('--dest') + '/{WHEEL}', 'w').write('wheel')
import time
end = time.monotonic() + 5
while not os.path.exists({str(done)!r}) and time.monotonic() < end:
    time.sleep(0.01)
"""
    for size in fake_pip(tmp_path, code).fetch("some-model==1.0", folder):
        assert size in (3, 8)
        if size == 8:
            done.touch()
    assert done.exists()
    call = called(calls)
    assert call["argv"][:2] == ["download", "some-model==1.0"]
    words = " ".join(call["argv"])
    for option in ("--no-deps", "--only-binary :all:", "--progress-bar off", "--no-cache-dir", "--retries 1"):
        assert option in words
    assert words.endswith(f"--dest {folder}")
    assert (call["cwd"], call["input"]) == (str(folder), "")
    expected = {
        "TMPDIR": str(folder),
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
        "PIP_INDEX_URL": "https://mirror.example/simple",
    }
    assert {key: call["environ"].get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("print('noise'); sys.exit('WARNING: x\\nERROR: no such index\\nERROR: later')", "no such index"),
        ("print('a  b'); sys.stdout.flush(); sys.exit('c')", "a b c"),
        ("sys.exit('x' * 1000)", "x" * 300),
        ("sys.stdout.buffer.write(b'\\xff bad'); sys.exit(3)", "\ufffd bad"),
    ],
)
def test_the_message_of_pip_is_shown(tmp_path: Path, code: str, message: str) -> None:
    (tmp_path / "wheels").mkdir()
    with pytest.raises(RegistryError) as error:
        list(fake_pip(tmp_path, code).fetch("some-model==1.0", tmp_path / "wheels"))
    assert str(error.value) == f"pip cannot download some-model==1.0: {message}"


def test_closing_ends_pip(tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    code = "import time; time.sleep(60)"
    sizes = fake_pip(tmp_path, code).fetch("some-model==1.0", tmp_path / "wheels")
    assert next(sizes) == 0
    sizes.close()


@pytest.mark.parametrize(
    ("module", "programs", "expected"),
    [
        (True, {}, [sys.executable, "-P", "-m", "pip"]),
        (False, {"pip": "/bin/pip", "pip3": "/bin/pip3"}, ["/bin/pip"]),
        (False, {"pip3": "/bin/pip3"}, ["/bin/pip3"]),
        (False, {}, None),
    ],
)
def test_which_pip_is_used(
    monkeypatch: pytest.MonkeyPatch, module: bool, programs: dict[str, str], expected: list[str] | None
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", {"pip": object() if module else None}.__getitem__)
    monkeypatch.setattr(shutil, "which", programs.get)
    pip = Pip.found()
    assert (None if pip is None else pip._command) == expected
