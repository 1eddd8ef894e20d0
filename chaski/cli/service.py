"""`chaski service`: runs the server as a service of the user or of the machine."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.unknown_words import Commands

if TYPE_CHECKING:
    from chaski.cli.service_managers import Manager

__all__ = ["command"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@click.group("service", cls=Commands, short_help="Run the server as a system service.")
@click.help_option("-h", "--help")
def command() -> None:
    """Let systemd, or launchd on macOS, start `chaski serve` and restart it after a failure.

    By default it is a service of the user and serves that user's models. With --system it is a service of the
    machine with its own user, and its models are in /var/lib/chaski.
    """


def _on_service(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option common to all commands."""
    system = click.option("--system", is_flag=True, help="Use the machine's service, not the user's.")
    return system(click.help_option("-h", "--help")(function))


@command.command("install", short_help="Install and start the service.")
@click.option("--env", "settings", metavar="NAME=VALUE", multiple=True, help="Variable for the server.")
@click.option("--dry-run", is_flag=True, help="Show the file and the commands without running them.")
@_on_service
def install(settings: tuple[str, ...], dry_run: bool, system: bool) -> None:
    """Write the service file, and start the service now and at each boot or login.

    Run it again with other settings to rewrite the file and restart the service. It never overwrites a file
    that chaski did not write. Do not put keys into --env; docs/service.md shows where they belong.
    """
    manager = _manager(system)
    text = manager.text(_start_command(), _environment(settings))
    if dry_run:
        click.echo(f"# {manager.path}\n{text}")
        manager.prepare(_show)
        manager.begin(_show, changed=True)
        return
    manager.check()
    there = _own_text(manager.path)
    changed = there != text
    if changed:
        _write(manager.path, text)
        click.echo(f"wrote {manager.path}")
    manager.prepare(_run)
    manager.begin(_run, changed)
    if not system and sys.platform != "darwin":
        click.echo("It ends when you log out; `loginctl enable-linger` keeps it running.")


@command.command("uninstall", short_help="Stop the service and remove its file.")
@_on_service
def uninstall(system: bool) -> None:
    """Stop the service and remove its file. Models, keys and the service's user are kept."""
    manager = _manager(system)
    if _own_text(manager.path) is None:
        click.echo(f"nothing to remove: there is no {manager.path}")
        return
    manager.check()
    manager.end(_run)
    try:
        manager.path.unlink()
    except OSError as error:
        raise _refused(manager.path, error) from error
    manager.forget(_run)
    click.echo(f"removed {manager.path}; models are kept")


@command.command("start", short_help="Start the service.")
@_on_service
def start(system: bool) -> None:
    """Start the installed service."""
    _installed(system).start(_run)


@command.command("stop", short_help="Stop the service until the next start.")
@_on_service
def stop(system: bool) -> None:
    """Stop the service until it is started again or the machine restarts."""
    _installed(system).stop(_run)


@command.command("status", short_help="Show whether the service runs.")
@_on_service
def status(system: bool) -> None:
    """Show the service's state from systemd or launchd. The exit status is 0 if the service runs."""
    sys.exit(_installed(system).status(_run))


@command.command("logs", short_help="Show the log of the service.")
@click.option(
    "-n", "--lines", type=click.IntRange(min=1), default=50, show_default=True, help="How many lines."
)
@click.option("-f", "--follow", is_flag=True, help="Follow the log.")
@_on_service
def logs(lines: int, follow: bool, system: bool) -> None:
    """Show the last lines of the service's log."""
    _installed(system).logs(_run, lines, follow)


def _manager(system: bool) -> Manager:
    from chaski.cli.service_managers import Launchd, Systemd

    if sys.platform != "darwin":
        return Systemd(system)
    if system:
        raise click.UsageError("--system needs systemd; on macOS the service belongs to the user")
    return Launchd()


def _installed(system: bool) -> Manager:
    manager = _manager(system)
    if _own_text(manager.path) is None:
        switch = " --system" if system else ""
        raise click.ClickException(
            f"there is no {manager.path}; install the service with `chaski service install{switch}`"
        )
    manager.check()
    return manager


def _start_command() -> list[str]:
    """Return the command that starts the server with the running program."""
    script = Path(sys.argv[0]).absolute()
    if script.name == "chaski":
        return [str(script), "serve"]
    return [sys.executable, "-P", "-m", "chaski", "serve"]


def _environment(settings: tuple[str, ...]) -> dict[str, str]:
    """Return the variables of --env. Raises UsageError, or OptionError for an invalid value."""
    from chaski.env import Environment, without_secrets

    found = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not _NAME.fullmatch(name) or not text.isprintable():
            raise click.UsageError(f"--env {setting!r} must be NAME=VALUE, on one line")
        found[name] = text
    Environment.read(found)
    if secret := found.keys() - without_secrets(found).keys():
        raise click.UsageError(
            f"{min(secret)} is a secret, and other users can read service files. "
            "docs/service.md shows where it belongs"
        )
    return found


def _own_text(path: Path) -> str | None:
    """Return the service file's text, or None. Raises ClickException if chaski did not write it."""
    from chaski.cli.service_files import MARK

    is_link = path.is_symlink()
    try:
        text = "" if is_link else path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _refused(path, error) from error
    if is_link or MARK not in text:
        raise click.ClickException(
            f"{path} was not written by chaski, so it is left unchanged. Remove it to install the service."
        )
    return text


def _write(path: Path, text: str) -> None:
    """Write the file atomically."""
    draft = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(text)
        draft.replace(path)
    except OSError as error:
        raise _refused(path, error) from error


def _refused(path: Path, error: OSError) -> click.ClickException:
    hint = ". The service of the machine needs root: sudo" if isinstance(error, PermissionError) else ""
    return click.ClickException(f"{path}: {error.strerror}{hint}")


def _run(*words: str, may_fail: bool = False) -> int:
    """Run a program of the system with this terminal, and return its exit status."""
    try:
        status = subprocess.run(words, check=False).returncode
    except FileNotFoundError:
        raise click.ClickException(f"the program {words[0]} was not found") from None
    except KeyboardInterrupt:  # the end of `logs --follow`
        return 0
    if status and not may_fail:
        raise click.ClickException(f"`{shlex.join(words)}` failed with status {status}")
    return status


def _show(*words: str, may_fail: bool = False) -> int:
    """Print what `_run` would run."""
    click.echo(shlex.join(words))
    return 0
