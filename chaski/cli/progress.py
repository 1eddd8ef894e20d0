"""Loads a model on the command line with a progress bar."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Unpack

from chaski.progress_bar import ProgressBar

if TYPE_CHECKING:
    from chaski.runner.channels.worker.client import LoadOptions
    from chaski.runner.llm import LLM
    from chaski.runner.loading.files import OpenedModel

__all__ = ["load_with_bar"]


def load_with_bar(
    model: str | OpenedModel,
    label: str = "",
    **options: Unpack[LoadOptions],
) -> LLM:
    """Call `chaski.load` with a progress bar. The bar shows `label`, if given, instead of the model."""
    from chaski.runner.loading.loader import load

    with closing(ProgressBar(f"loading {label or model}")) as bar:
        return load(model, progress=bar, **options)
