"""Loading a model from the command line: with a bar, where somebody watches and it takes long enough."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from chaski.runner.llm import LLM

__all__ = ["LoadingBar", "load_model"]

_PATIENCE_SECONDS = 0.3
_WIDTH = 25


class LoadingBar:
    """Call it with the done share, from 0 to 1. Draws on stderr, and leaves nothing behind."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._started = time.monotonic()
        self._drawn = -1

    def __call__(self, share: float) -> None:
        percent = int(100 * share)
        is_late = time.monotonic() - self._started > _PATIENCE_SECONDS
        if percent > self._drawn and is_late and sys.stderr.isatty():
            bar = ("█" * (percent * _WIDTH // 100)).ljust(_WIDTH)
            click.echo(f"\r{self._label} {percent:3d}% ▕{bar}▏", nl=False, err=True)
            self._drawn = percent

    def close(self) -> None:
        """Take the bar off the terminal."""
        if self._drawn >= 0:
            click.echo("\r\x1b[K", nl=False, err=True)


def load_model(
    model: str,
    *,
    threads: int | None,
    context: int | None,
    parallel: int | None = None,
    num_batch: int = 512,
    backend: str = "cpu",
    engine: str | None = None,
    draft: str | None = None,
) -> LLM:
    """`chaski.load` with a progress bar."""
    from chaski.runner.loading.loader import load

    with closing(LoadingBar(f"loading {model}")) as bar:
        return load(
            model,
            threads=threads,
            context=context,
            parallel=parallel,
            num_batch=num_batch,
            backend=backend,
            engine=engine,
            draft=draft,
            progress=bar,
        )
