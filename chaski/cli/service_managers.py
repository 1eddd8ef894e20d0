"""Service managers: systemd on Linux, launchd on macOS."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import click
from msgspec import Struct, field

from chaski.cli.service_files import HOME, LABEL, USER, launchd_agent, systemd_unit

__all__ = ["Launchd", "Manager", "Run", "Systemd"]

_BOOTED = Path("/run/systemd/system")  # exists if systemd is the init process
_PRIVATE = (Path("/home"), Path("/root"), Path("/run/user"))  # folders hidden by ProtectHome


class Run(Protocol):
    """Runs a program, or prints it for a dry run. Without `may_fail`, a failure ends the command."""

    def __call__(self, *words: str, may_fail: bool = False) -> int: ...


class Manager(Protocol):
    """A service and its file. Its actions run system programs."""

    @property
    def path(self) -> Path:
        """The file of the service."""

    def text(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """Return the text of the file. Raises ClickException if the service could not run the command."""

    def check(self) -> None:
        """Raise ClickException if this system has no such manager."""

    def prepare(self, run: Run) -> None:
        """Create everything that the service needs besides its file."""

    def begin(self, run: Run, changed: bool) -> None:
        """Start the service now and at each boot or login. `changed`: the file is new or has changed."""

    def end(self, run: Run) -> None:
        """Stop and disable the service. Its file still exists."""

    def forget(self, run: Run) -> None:
        """Notify the manager that the file was removed."""

    def start(self, run: Run) -> None: ...

    def stop(self, run: Run) -> None: ...

    def status(self, run: Run) -> int:
        """Show the state, and return 0 if the service runs."""

    def logs(self, run: Run, lines: int, follow: bool) -> None: ...


class Systemd(Struct, frozen=True):
    """The unit chaski.service, of the machine (`system`) or of the user."""

    system: bool

    @property
    def path(self) -> Path:
        if self.system:
            return Path("/etc/systemd/system/chaski.service")
        return _config() / "systemd" / "user" / "chaski.service"

    def text(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        program = Path(command[0])
        if self.system and any(program.is_relative_to(folder) for folder in _PRIVATE):
            raise click.ClickException(
                f"{program} is in a home folder, which the machine's service cannot read.\n"
                "Install chaski where all users can read it, such as /opt/chaski."
            )
        return systemd_unit(command, environment, self.system)

    def check(self) -> None:
        if shutil.which("systemctl") is None or not _BOOTED.is_dir():
            raise click.ClickException(
                "systemd does not run on this system, as is usual in containers.\n"
                "Make `chaski serve` the command of the container, or start it with the service manager\n"
                "of this system. `install --dry-run` shows the unit for systemd."
            )

    def prepare(self, run: Run) -> None:
        if self.system and not _is_user(USER):
            run("useradd", "--system", "--create-home", "--home-dir", str(HOME), USER)

    def begin(self, run: Run, changed: bool) -> None:
        self._control(run, "daemon-reload")
        self._control(run, "enable", self.path.name)
        self._control(run, "restart" if changed else "start", self.path.name)

    def end(self, run: Run) -> None:
        self._control(run, "disable", "--now", self.path.name)

    def forget(self, run: Run) -> None:
        self._control(run, "daemon-reload")

    def start(self, run: Run) -> None:
        self._control(run, "start", self.path.name)

    def stop(self, run: Run) -> None:
        self._control(run, "stop", self.path.name)

    def status(self, run: Run) -> int:
        return self._control(run, "status", "--no-pager", self.path.name, may_fail=True)

    def logs(self, run: Run, lines: int, follow: bool) -> None:
        unit = "--unit" if self.system else "--user-unit"
        follows = ["--follow"] if follow else ["--no-pager"]
        run("journalctl", unit, self.path.name, "--lines", str(lines), *follows)

    def _control(self, run: Run, *words: str, may_fail: bool = False) -> int:
        return run("systemctl", *([] if self.system else ["--user"]), *words, may_fail=may_fail)


class Launchd(Struct, frozen=True):
    """A user's launchd agent on macOS."""

    domain: str = field(default_factory=lambda: f"gui/{os.getuid()}")
    log: Path = field(default_factory=lambda: Path.home() / "Library" / "Logs" / "chaski.log")

    @property
    def path(self) -> Path:
        return Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    def text(self, command: Sequence[str], environment: Mapping[str, str]) -> str:
        return launchd_agent(command, environment, self.log)

    def check(self) -> None:
        if shutil.which("launchctl") is None:
            raise click.ClickException("launchctl, which starts services on macOS, was not found")

    def prepare(self, run: Run) -> None:
        pass

    def begin(self, run: Run, changed: bool) -> None:
        if changed:
            self.end(run)
            run("launchctl", "bootstrap", self.domain, str(self.path))
        else:
            self.start(run)

    def end(self, run: Run) -> None:
        run("launchctl", "bootout", self._target, may_fail=True)  # it fails if the agent is not loaded

    def forget(self, run: Run) -> None:
        pass

    def start(self, run: Run) -> None:
        run("launchctl", "kickstart", self._target)

    def stop(self, run: Run) -> None:
        run("launchctl", "kill", "SIGTERM", self._target)

    def status(self, run: Run) -> int:
        return run("launchctl", "print", self._target, may_fail=True)

    def logs(self, run: Run, lines: int, follow: bool) -> None:
        run("tail", "-n", str(lines), *(["-f"] if follow else []), str(self.log))

    @property
    def _target(self) -> str:
        return f"{self.domain}/{LABEL}"


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _config() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
