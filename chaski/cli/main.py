"""The table of commands, with logging and one-line errors for all of them."""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import sys
from importlib import import_module
from pathlib import Path

import click

from chaski.cli.terminal import wrapped
from chaski.errors import ChaskiError
from chaski.standard_streams import OutputLostError, catch_lost_output, open_missing

__all__ = ["chaski_command", "main"]

_COMMANDS = {
    "serve": "chaski.server.command",
    "run": "chaski.cli.run",
    "demo": "chaski.cli.demo",
    "guide": "chaski.cli.guide",
    "pull": "chaski.cli.pull",
    "push": "chaski.cli.push",
    "create": "chaski.cli.create",
    "convert": "chaski.cli.convert",
    "list": "chaski.cli.list",
    "ps": "chaski.cli.ps",
    "top": "chaski.cli.top",
    "cluster": "chaski.cli.cluster",
    "shard": "chaski.cli.shard",
    "stop": "chaski.cli.stop",
    "show": "chaski.cli.show",
    "cp": "chaski.cli.cp",
    "rm": "chaski.cli.rm",
    "verify": "chaski.cli.verify",
    "prune": "chaski.cli.prune",
    "cache": "chaski.cli.cache",
    "models": "chaski.cli.models",
    "info": "chaski.cli.info",
    "bench": "chaski.cli.bench",
    "batch": "chaski.server.batch_command",
    "service": "chaski.cli.service",
    "completion": "chaski.cli.completion",
}
_LABEL = "Error: "  # click's prefix for errors
_ALIASES = {"ls": "list"}


class _Commands(click.Group):
    """Finds commands in their modules, each of which defines a `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[name]).command
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            vars(error)["message"] = wrapped(error.message, _LABEL)  # type checkers see it as read-only
            raise
        except ChaskiError as error:
            raise click.ClickException(wrapped(str(error), _LABEL)) from error


class _Notes(logging.Formatter):
    """Formats warnings as readable lines. Quoted text cannot control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "Note: " + wrapped(super().format(record), "Note: ")


def _version() -> str:
    """Return the version. Raises ClickException if another package replaced this one.

    On PyPI, `chaski` is another project that installs into the same folder.
    """
    try:
        from chaski import __version__
    except ImportError:
        raise click.ClickException(
            f"{Path(__file__).parents[1]} does not contain chaski-llm's `__init__.py`. The PyPI package "
            "`chaski`, another project, was installed over it or uninstalled from it. Run: "
            "pip uninstall chaski; pip install --force-reinstall chaski-llm"
        ) from None
    return __version__


def _print_version(ctx: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    if is_wanted:
        click.echo(f"chaski version {_version()}")
        ctx.exit()


@click.group(cls=_Commands)
@click.help_option("-h", "--help")
@click.option(
    *("-v", "--version"),
    is_flag=True,
    callback=_print_version,
    expose_value=False,
    is_eager=True,
    help="Show the version and exit.",
)
def chaski_command() -> None:
    """Run language models on this machine."""
    _version()
    handler = logging.StreamHandler()
    handler.setFormatter(_Notes())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def main() -> None:
    """Run the command line. The installed `chaski` script calls this function."""
    open_missing()
    catch_lost_output()
    # NumPy's BLAS would start one thread per core, and these threads spin during the imports.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # This skips the garbage collection at exit, which would delay the end of the command.
    atexit.register(gc.freeze)
    try:
        try:
            chaski_command(prog_name="chaski")
        finally:
            sys.stdout.flush()
    except OutputLostError as lost:
        # Discard the rest of the output, so that the interpreter does not try to write it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        # It is no error if a reader such as `head` stops reading or the terminal closes.
        if lost.cause.errno not in (errno.EPIPE, errno.EIO):
            click.echo(f"Error: cannot write the output: {lost}", err=True)
        sys.exit(1)
