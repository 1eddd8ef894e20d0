"""`chaski stop`: unloads a model from a running server."""

from __future__ import annotations

import click

from chaski.cli.completion import model_names

__all__ = ["command"]


@click.command("stop", short_help="Unload a model from memory.")
@click.argument("model", shell_complete=model_names)
@click.help_option("-h", "--help")
def command(model: str) -> None:
    """Make the running server unload MODEL after it has answered its requests."""
    from chaski.errors import ModelNotFoundError
    from chaski.remote import running_server

    try:
        running_server().post("/api/generate", {"model": model, "keep_alive": 0})
    except ModelNotFoundError:
        raise ModelNotFoundError(f'couldn\'t find model "{model}" to stop') from None
