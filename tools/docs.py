"""Writes the pages that can be made from code: docs/cli.md and docs/environment.md. `make docs` runs it."""

from __future__ import annotations

from pathlib import Path

import click

from chaski.cli.main import chaski_command
from chaski.env import variables

DOCS = Path(__file__).parent.parent / "docs"


_WHICH_STORE = """\
## Which store

`list`, `show`, `create`, `cp`, `rm`, `pull` and `push` work on [the store of this machine](store.md), without
a server. Where `OLLAMA_HOST` is set, they ask the server that it names, over its API and with the key in
`OLLAMA_API_KEY`; they fail if it does not answer. `ps` and `stop` always ask a server: the one that
`OLLAMA_HOST` names, or else the one at the usual address. `run` asks a server that has the model. Where there
is none, it loads the model itself.

* `create` sends the GGUF files that a Modelfile names to the server. A checkpoint must be converted first, by
  `chaski convert`.
* `show` reads a file (`./model.gguf`) on this machine in any case. `ps` tells how much memory a loaded model
  takes.
* `verify` and `prune` are for the store of this machine, and say so.

Models, files, servers and registries may send control characters. On a terminal they are spelled out; files
and pipes get them unchanged."""


def cli_page() -> str:
    """Every command with its help, as the command line prints it."""
    context = click.Context(chaski_command, info_name="chaski")
    parts = ["# Commands", "This page is made by `make docs`.", _WHICH_STORE, _help(chaski_command, context)]
    for name in chaski_command.list_commands(context):
        command = chaski_command.get_command(context, name)
        assert command is not None
        sub = click.Context(command, info_name=name, parent=context, max_content_width=100)
        parts += [f"## chaski {name}", _help(command, sub)]
    return "\n\n".join(parts) + "\n"


def environment_page() -> str:
    """The table of environment variables."""
    rows = [
        f"| `{variable.name}` | {variable.kind} | {variable.default} | {variable.meaning} |"
        for variable in variables()
    ]
    head = ["| name | kind | default | meaning |", "|---|---|---|---|"]
    intro = (
        "This page is made by `make docs`. Arguments and options go before variables, and variables before\n"
        "defaults. A value that a variable cannot have is an error that names the variable."
    )
    return "\n".join(["# Environment variables", "", intro, "", *head, *rows]) + "\n"


PAGES = {"cli.md": cli_page, "environment.md": environment_page}


def _help(command: click.Command, context: click.Context) -> str:
    return f"```\n{command.get_help(context)}\n```"


def main() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
