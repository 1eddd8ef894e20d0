"""The option `--json` of commands that print tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

__all__ = ["echo_json", "json_option"]

F = TypeVar("F", bound=Callable[..., Any])


def json_option(about: str) -> Callable[[F], F]:
    """Return the option. Its value is `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=about)


def echo_json(value: object) -> None:
    """Print a value as indented JSON. Escaped characters make it safe for every terminal."""
    click.echo(json.dumps(value, indent=2))
