"""A model for `chaski run` without a server: in this process, or in a worker where llama.cpp computes it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaski.chat.defaults import Defaults
    from chaski.chat.events import Event
    from chaski.cli.thinking import ThinkingModel
    from chaski.runner.llm import LLM
    from chaski.runner.service.worker import Worker

__all__ = ["WorkerModel", "open_model"]


class WorkerModel:
    """A worker with what a chat shows of its model."""

    def __init__(self, worker: Worker, defaults: Defaults) -> None:
        info = worker.info()
        self._worker = worker
        self.path = f"{info.path} ({info.engine})"
        self.context = info.context
        self.vocab_size = info.vocab_size
        self.chat_template = info.chat_template
        self.defaults = defaults
        self.has_vision = info.has_vision

    def stream(
        self, prompt: str | Sequence[int], images: Sequence[bytes] = (), **options: Any
    ) -> Generator[Event, None, None]:
        """Continue a prompt as it is."""
        return self._worker.stream(prompt, images, **options)

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> Generator[Event, None, None]:
        """Answer a conversation."""
        return self._worker.stream_chat(messages, **options)

    def tokenize(self, text: str, add_special: bool = True, images: Sequence[bytes] = ()) -> list[int]:
        """The ids of a text."""
        return self._worker.tokenize(text, add_special, images=images)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def open_model(
    model: str,
    *,
    threads: int | None,
    context: int | None,
    backend: str,
    engine: str | None,
    draft: str | None = None,
) -> LLM | WorkerModel | ThinkingModel:
    """Load a model with a progress bar, in the engine that is asked for or that has it."""
    from chaski.server.models.catalog import ModelInfo
    from chaski.store.model import find_model

    loaded = _load(model, threads, context, backend, engine, draft)
    info = ModelInfo(find_model(model))
    if "thinking" not in info.capabilities:
        return loaded
    from chaski.cli.thinking import ThinkingModel

    return ThinkingModel(loaded, info.chat_format)


def _load(
    model: str, threads: int | None, context: int | None, backend: str, engine: str | None, draft: str | None
) -> LLM | WorkerModel:
    from chaski.chat.defaults import Defaults
    from chaski.cli.progress import load_model
    from chaski.model.dialects import open_model
    from chaski.names import NATIVE, check_engine
    from chaski.progress_bar import ProgressBar
    from chaski.runner.loading.engine_choice import choose_engine
    from chaski.runner.service.worker import Worker
    from chaski.store.model import find_model

    found = find_model(model)
    defaults = Defaults.of(found)
    with open_model(found.path) as file:
        chosen = choose_engine(file, check_engine(engine) or defaults.engine)
    if chosen == NATIVE:
        return load_model(
            model, threads=threads, context=context, backend=backend, engine=NATIVE, draft=draft
        )
    with closing(ProgressBar(f"loading {model}")) as bar:
        worker = Worker(
            model,
            threads=threads,
            context=context,
            backend=backend,
            engine=chosen,
            draft=draft,
            progress=bar,
        )
        return WorkerModel(worker, defaults)
