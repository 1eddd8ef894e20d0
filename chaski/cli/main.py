"""The table of commands, with logging and one-line errors for all of them."""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import sys
from importlib import import_module

import click

from chaski.cli.terminal import wrapped
from chaski.cli.unknown_words import Commands, missing_model, unknown_option
from chaski.cli.version import check_package, version_option
from chaski.errors import ChaskiError, ModelNotFoundError
from chaski.standard_streams import OutputLostError, open_missing, prepare_streams

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
    "quantize": "chaski.cli.quantize",
    "imatrix": "chaski.cli.imatrix",
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
    "new-model": "chaski.cli.new_model",
    "info": "chaski.cli.info",
    "bench": "chaski.cli.bench",
    "eval": "chaski.cli.eval",
    "advise": "chaski.cli.advise",
    "fit": "chaski.cli.fit",
    "batch": "chaski.server.batch_command",
    "service": "chaski.cli.service",
    "completion": "chaski.cli.completion",
    "help": "chaski.cli.help",
    "version": "chaski.cli.version",
}
_LABEL = "Error: "  # click's prefix for errors
_ALIASES = {"ls": "list"}
_WORDS = f"{__name__}.words"


class _Commands(Commands):
    """Finds commands in their modules, each of which defines a `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = _ALIASES.get(cmd_name, cmd_name)
        if name not in _COMMANDS:
            return None
        command: click.Command = import_module(_COMMANDS[name]).command
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        ctx.meta[_WORDS] = words
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            raise unknown_option(error, words) from None

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.ClickException as raised:
            error = raised
            if isinstance(raised, click.NoSuchOption):
                error = unknown_option(raised, ctx.meta[_WORDS])
            vars(error)["message"] = wrapped(error.message, _LABEL)  # type checkers see it as read-only
            raise error from None
        except ChaskiError as error:
            is_missing = isinstance(error, ModelNotFoundError)
            text = missing_model(str(error)) if is_missing else str(error)
            raise click.ClickException(wrapped(text, _LABEL)) from error


class _Notes(logging.Formatter):
    """Formats warnings as readable lines. Quoted text cannot control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return "Note: " + wrapped(super().format(record), "Note: ")


@click.group(cls=_Commands)
@click.help_option("-h", "--help")
@version_option
def chaski_command() -> None:
    """Run language models on this machine."""
    check_package()
    handler = logging.StreamHandler()
    handler.setFormatter(_Notes())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def main() -> None:
    """Run the command line. The installed `chaski` script calls this function."""
    open_missing()
    prepare_streams()
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
