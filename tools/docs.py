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
a server. Where `OLLAMA_HOST` is set, they ask the server that it names, over its API, with the key in
`OLLAMA_API_KEY`, and fail where it does not answer; so do `ps` and `stop`, which ask the server at its usual
address otherwise. `run` asks a server that has the model, and loads it here where there is none.

* `create` sends the GGUF files that a Modelfile names. A checkpoint is converted first, by `chaski convert`.
* `show` looks at a file (`./model.gguf`) here in any case. `ps` tells how much memory a model of
  a server takes, once it is loaded.
* `verify` and `prune` are for the store of this machine, and say so.

Control characters in what others write (models, files, servers, registries) are spelled out on a terminal;
files and pipes get them unchanged."""


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
        "This page is made by `make docs`. Arguments and options win over the environment; a value\n"
        "that cannot be read is an error."
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
