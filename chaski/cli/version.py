"""`chaski version`: shows the version."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["check_package", "command", "version_option"]


@click.command("version", short_help="Show the version.")
@click.help_option("-h", "--help")
def command() -> None:
    """Show the version of chaski, as `chaski --version` does."""
    click.echo(f"chaski version {check_package()}")


def check_package() -> str:
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
        click.echo(f"chaski version {check_package()}")
        ctx.exit()


version_option = click.option(
    *("-v", "--version"),
    is_flag=True,
    callback=_print_version,
    expose_value=False,
    is_eager=True,
    help="Show the version and exit.",
)
