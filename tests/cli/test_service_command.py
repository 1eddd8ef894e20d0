"""`chaski service`, with replaced system programs that only record their calls."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaski.cli import service, service_managers
from chaski.cli.main import chaski_command
from chaski.cli.service_files import MARK, launchd_agent, systemd_unit
from chaski.cli.service_managers import Launchd, Systemd

ROOT = Path(__file__).parents[2]
COMMAND = ["/opt/chaski/bin/chaski", "serve"]


def call(*words: str) -> Result:
    return CliRunner().invoke(chaski_command, ["service", *words])


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home and a running systemd; return the file with its calls."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "journalctl", "useradd"):
        (programs / name).write_text(
            f'#!/bin/sh\necho {name} "$@" >> {tmp_path}/calls\ncase "$*" in *status*) exit 3;; esac\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(service_managers, "_BOOTED", tmp_path)
    return tmp_path / "calls"


@pytest.fixture
def unit(calls: Path) -> Path:
    return calls.parent / "config/systemd/user/chaski.service"


def asked(calls: Path) -> list[str]:
    lines = calls.read_text().splitlines()
    calls.unlink()
    return lines


def test_the_unit_of_the_repository_is_what_install_writes() -> None:
    assert (ROOT / "deploy/chaski.service").read_text() == systemd_unit(COMMAND, {}, system=True)


@pytest.mark.parametrize("system", [False, True])
def test_systemd_reads_the_units(tmp_path: Path, system: bool) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    path = tmp_path / "chaski.service"
    program = str(Path(shutil.which("true") or "/bin/true").resolve())
    environment = {"A": 'two words "and" \\ 100 %', "B": "$HOME"}
    path.write_text(systemd_unit([program, "a b", "50%", "$x"], environment, system))
    done = subprocess.run(
        [analyze, "verify", "--man=no", *([] if system else ["--user"]), str(path)],
        env={"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert [line for line in done.stderr.splitlines() if "chaski" in line] == []


def test_words_that_systemd_would_read_otherwise_are_quoted() -> None:
    text = systemd_unit(["/a b/chaski", "$x", "5%"], {"A": 'say "x"\\', "B": "5%"}, system=False)
    assert 'ExecStart="/a b/chaski" "$$x" 5%%\n' in text
    assert 'Environment="A=say \\"x\\"\\\\"\n' in text
    assert "Environment=B=5%%\n" in text


def test_variables_go_before_those_of_the_machine() -> None:
    text = systemd_unit(COMMAND, {"OLLAMA_HOST": "0.0.0.0:80"}, system=True)
    assert text.count("OLLAMA_HOST") == 1
    assert "Environment=OLLAMA_HOST=0.0.0.0:80\n" in text


def test_install_writes_and_starts_once(calls: Path, unit: Path) -> None:
    first = call("install", "--env", "OLLAMA_HOST=127.0.0.1:9")
    assert first.exit_code == 0, first.output
    assert f"wrote {unit}" in first.output
    assert "Environment=OLLAMA_HOST=127.0.0.1:9\n" in unit.read_text()
    begun = ["systemctl --user daemon-reload", "systemctl --user enable chaski.service"]
    assert asked(calls) == [*begun, "systemctl --user restart chaski.service"]
    again = call("install", "--env", "OLLAMA_HOST=127.0.0.1:9")
    assert "wrote" not in again.output
    assert asked(calls) == [*begun, "systemctl --user start chaski.service"]
    assert "wrote" in call("install").output
    assert "OLLAMA_HOST" not in unit.read_text()
    assert [path.name for path in unit.parent.iterdir()] == ["chaski.service"]


def test_a_dry_run_does_nothing_and_needs_no_systemd(
    calls: Path, unit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_managers, "_BOOTED", Path("/nowhere"))
    shown = call("install", "--dry-run")
    assert shown.exit_code == 0
    assert shown.output.startswith(f"# {unit}\n# {MARK}")
    assert shown.output.endswith("systemctl --user restart chaski.service\n")
    assert not unit.exists()
    assert not calls.exists()


def test_the_service_of_the_machine_has_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/chaski/bin/chaski"])
    monkeypatch.setattr(service_managers, "_is_user", lambda name: False)
    shown = call("install", "--system", "--dry-run").output
    assert (ROOT / "deploy/chaski.service").read_text() in shown
    assert "useradd --system --create-home --home-dir /var/lib/chaski chaski\nsystemctl daemon" in shown
    monkeypatch.setattr(service_managers, "_is_user", lambda name: True)
    assert "useradd" not in call("install", "--system", "--dry-run").output


def test_a_home_is_no_place_for_the_service_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/me/env/bin/chaski"])
    refused = call("install", "--system", "--dry-run")
    assert refused.exit_code == 1
    assert "which the machine's service cannot read" in refused.output


def test_other_commands(calls: Path, unit: Path) -> None:
    for words in (["start"], ["stop"], ["status"], ["logs"]):
        missing = call(*words)
        assert missing.exit_code == 1
        assert "install the service with `chaski service install`" in missing.output
    call("install")
    calls.unlink()
    assert [call(word).exit_code for word in ("start", "stop", "status", "logs")] == [0, 0, 3, 0]
    assert call("logs", "-f", "-n", "7").exit_code == 0
    assert asked(calls) == [
        "systemctl --user start chaski.service",
        "systemctl --user stop chaski.service",
        "systemctl --user status --no-pager chaski.service",
        "journalctl --user-unit chaski.service --lines 50 --no-pager",
        "journalctl --user-unit chaski.service --lines 7 --follow",
    ]
    assert "models are kept" in call("uninstall").output
    assert not unit.exists()
    assert asked(calls) == [
        "systemctl --user disable --now chaski.service",
        "systemctl --user daemon-reload",
    ]
    assert call("uninstall").output.startswith("nothing to remove")


@pytest.mark.parametrize("word", ["install", "uninstall", "start"])
def test_the_file_of_somebody_else_stays(calls: Path, unit: Path, word: str) -> None:
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    refused = call(word)
    assert refused.exit_code == 1
    assert "was not written by chaski" in refused.output
    assert unit.read_text() == "[Service]\nExecStart=/bin/true\n"
    unit.unlink()
    unit.symlink_to("/dev/null")  # a masked unit
    assert call(word).exit_code == 1
    assert unit.is_symlink()
    assert not calls.exists()


def test_without_systemd_it_says_what_to_do(calls: Path, unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_managers, "_BOOTED", Path("/nowhere"))
    refused = call("install")
    assert refused.exit_code == 1
    assert "Make `chaski serve` the command of the container" in refused.output
    assert not unit.exists()


def test_a_program_that_fails_is_named(calls: Path) -> None:
    (calls.parent / "bin/systemctl").write_text("#!/bin/sh\nexit 4\n")
    refused = call("install")
    assert refused.exit_code == 1
    assert "`systemctl --user daemon-reload` failed with status 4" in refused.output


def test_a_folder_that_cannot_be_written(unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    refused = call("install")
    assert refused.exit_code == 1
    assert f"{unit}: Permission denied. The service of the machine needs root" in refused.output


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("OLLAMA_HOST", "must be NAME=VALUE"),
        ("9A=b", "must be NAME=VALUE"),
        ("A=b\nUser=root", "must be NAME=VALUE"),
        ("CHASKI_API_KEYS=secret", "CHASKI_API_KEYS is a secret"),
        ("OLLAMA_NUM_PARALLEL=many", "must be"),
    ],
)
def test_variables_that_cannot_be(calls: Path, unit: Path, setting: str, says: str) -> None:
    refused = call("install", "--env", setting)
    assert refused.exit_code != 0
    assert says in refused.output
    assert not unit.exists()


def test_the_agent_of_launchd() -> None:
    text = launchd_agent(["/opt/a & b/chaski", "serve"], {"OLLAMA_HOST": "127.0.0.1:9"}, Path("/log"))
    assert MARK in text
    agent = plistlib.loads(text.encode())
    assert agent["ProgramArguments"] == ["/opt/a & b/chaski", "serve"]
    assert agent["EnvironmentVariables"] == {"OLLAMA_HOST": "127.0.0.1:9"}
    assert agent["KeepAlive"] == {"SuccessfulExit": False}


def test_what_launchd_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    called: list[str] = []

    def run(*words: str, may_fail: bool = False) -> int:
        called.append(" ".join(words))
        return 0

    manager = Launchd(domain="gui/501")
    manager.prepare(run)
    manager.begin(run, changed=True)
    manager.begin(run, changed=False)
    manager.stop(run)
    manager.end(run)
    manager.forget(run)
    assert manager.status(run) == 0
    manager.logs(run, 9, follow=True)
    target = "gui/501/org.chaski.serve"
    assert called == [
        f"launchctl bootout {target}",
        f"launchctl bootstrap gui/501 {manager.path}",
        f"launchctl kickstart {target}",
        f"launchctl kill SIGTERM {target}",
        f"launchctl bootout {target}",
        f"launchctl print {target}",
        f"tail -n 9 -f {tmp_path}/Library/Logs/chaski.log",
    ]
    assert plistlib.loads(manager.text(["chaski"], {}).encode())["Label"] == "org.chaski.serve"


def test_each_system_has_its_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    assert service._manager(system=True) == Systemd(system=True)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isinstance(service._manager(system=False), Launchd)
    assert "on macOS the service belongs to the user" in call("status", "--system").output
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Exception, match="launchctl, which starts services on macOS, was not found"):
        Launchd().check()
