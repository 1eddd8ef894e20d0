"""A model for `chaski run` without a server: in this process, or in a llama.cpp worker process."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Unpack

from chaski.errors import ChaskiError
from chaski.progress_bar import ProgressBar

if TYPE_CHECKING:
    from chaski.chat.defaults import Defaults
    from chaski.chat.events import Event
    from chaski.runner.channels.worker.client import LoadOptions, Worker
    from chaski.runner.llm import LLM
    from chaski.runner.prefix.use import TierUse
    from chaski.store.model import StoredModel

__all__ = ["WorkerModel", "load_for_chat", "moved_prefixes"]


class WorkerModel:
    """A worker process with the model facts that a chat displays."""

    def __init__(self, worker: Worker, defaults: Defaults) -> None:
        info = worker.info()
        self._worker = worker
        self.path = f"{info.path} ({info.engine})"
        self.context = info.context
        self.max_context = info.max_context
        self.vocab_size = info.vocab_size
        self.chat_template = info.chat_template
        self.defaults = defaults
        self.has_vision = info.has_vision
        self.capabilities = info.capabilities

    def stream(
        self, prompt: str | Sequence[int], images: Sequence[bytes] = (), **options: Any
    ) -> Generator[Event, None, None]:
        """Continue a raw prompt."""
        return self._worker.stream(prompt, images, **options)

    def stream_chat(
        self, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> Generator[Event, None, None]:
        """Answer a conversation."""
        return self._worker.stream_chat(messages, **options)

    def prefixes(self) -> tuple[TierUse, ...]:
        """Return the contents of each tier of its prefix cache."""
        return self._worker.info().prefixes

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


@contextmanager
def moved_prefixes(model: object) -> Iterator[Callable[[object], None]]:
    """Keep the prefix cache of a model that is closed in memory; yield what gives it to the next one."""
    from chaski.runner.llm import LLM

    if not isinstance(model, LLM) or model.engine.tiers is None or not hasattr(os, "memfd_create"):
        yield lambda model: None
        return
    descriptor = os.memfd_create("chaski-prefixes", os.MFD_CLOEXEC)
    path = f"/proc/self/fd/{descriptor}"

    def give(model: object) -> None:
        if isinstance(model, LLM) and not model.engine.is_closed:
            with suppress(ChaskiError):
                model.take_prefixes(path)

    try:
        with suppress(ChaskiError):
            model.keep_prefixes(path)
        yield give
    finally:
        os.close(descriptor)


def load_for_chat(found: StoredModel, name: str, **options: Unpack[LoadOptions]) -> LLM | WorkerModel:
    """Load a model with a progress bar, in the requested engine or the one that supports it.

    name  the name that the user gave
    """
    from chaski.cli.progress import load_with_bar
    from chaski.cli.states import bring_state
    from chaski.names import NATIVE, check_engine
    from chaski.runner.loading.engine_choice import choose_engine
    from chaski.runner.loading.files import OpenedModel, image_projector

    model = OpenedModel.of(found)
    requested = check_engine(options.get("engine")) or model.defaults.engine
    options["engine"] = choose_engine(model.file, requested, image_projector(found))
    if options["engine"] == NATIVE:
        loaded = load_with_bar(model.expecting_text(), name, **options)
        bring_state(loaded, found)
        return loaded
    from chaski.runner.channels.worker.client import Worker

    model.file.close()
    with closing(ProgressBar(f"loading {name}")) as bar:
        return WorkerModel(Worker(name, progress=bar, **options), model.defaults)
