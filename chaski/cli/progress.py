"""Loading a model from the command line, with a bar."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING

from chaski.progress_bar import ProgressBar

if TYPE_CHECKING:
    from pathlib import Path

    from chaski.runner.llm import LLM
    from chaski.runner.loading.files import OpenedModel

__all__ = ["load_with_bar"]


def load_with_bar(
    model: str | OpenedModel,
    label: str = "",
    *,
    threads: int | None,
    context: int | None,
    parallel: int | None = None,
    num_batch: int = 512,
    backend: str | None = None,
    engine: str | None = None,
    draft: Path | None = None,
    adapters: Mapping[str, Path] | None = None,
    num_gpu: int | None = None,
    main_gpu: int | None = None,
) -> LLM:
    """`chaski.load` with a progress bar."""
    from chaski.runner.loading.loader import load

    with closing(ProgressBar(f"loading {label or model}")) as bar:
        return load(
            model,
            threads=threads,
            context=context,
            parallel=parallel,
            num_batch=num_batch,
            backend=backend,
            engine=engine,
            draft=draft,
            adapters=adapters,
            num_gpu=num_gpu,
            main_gpu=main_gpu,
            progress=bar,
        )
