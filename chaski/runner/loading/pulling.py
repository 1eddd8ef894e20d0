"""Models from registries, for Python: pulled by name, or as they are loaded."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from chaski.chat.arguments import path_text
from chaski.errors import ModelNotFoundError, OptionError
from chaski.names import Digest, ModelName
from chaski.pasted import pasted_name
from chaski.store.model import StoredModel, find_model

if TYPE_CHECKING:
    from chaski.chat.several import ProgressOption
    from chaski.store.progress import StoreProgress

__all__ = ["find_or_pull", "pull"]

# Registries that a name may be loaded from directly: a name that spells them out is deliberate.
_LOADABLE = ("hf.co/", "huggingface.co/")

_log = logging.getLogger(__name__)


def pull(model: str, *, insecure: bool = False, progress: ProgressOption = False) -> None:
    """Fetch a model into the store.

    Its name is `llama3.2:1b`, `hf.co/USER/REPOSITORY:QUANT` or `HOST/NAMESPACE/MODEL:TAG`; a link of
    huggingface.co or ollama.com is read as well. Blobs that are here already are not fetched again.
    `insecure` allows a registry without TLS, where the name says `http://`. `progress=True` draws a bar; a
    function is called with the share of the bytes that are known of.

    Raises ModelNotFoundError, RegistryError, DigestError, StoreError or OptionError.
    """
    # A local model is loaded without importing the code for registries.
    from chaski.chat.several import progress_of
    from chaski.env import Environment
    from chaski.store import pull as store_pull
    from chaski.store.http import Access
    from chaski.store.store import Store

    if not isinstance(model, str):
        raise OptionError(f"the model is {model!r:.80}; it must be a name")
    name = ModelName.parse(pasted_name(model))
    hosts = frozenset({*Environment.read().private_registries, name.host.lower()})
    steps = store_pull.pull(Store.default(), name, Access(insecure, hosts))
    with progress_of(progress, f"pulling {name.short}") as tell:
        for share in _shares(steps):
            tell(share)


def find_or_pull(model: str | os.PathLike[str], progress: bool = False) -> StoredModel:
    """Find a model by name or path; a name of Hugging Face's registry is pulled where it is not here.

    `progress` draws a bar of the pull.
    """
    if not isinstance(model, str):
        path_text(model, "the model")
    elif "://" in model:
        model = pasted_name(model)
    try:
        return find_model(model)
    except ModelNotFoundError:
        if not isinstance(model, str) or not model.lower().startswith(_LOADABLE):
            raise
    _log.warning("%s is not in the store yet, and is pulled", model)
    pull(model, progress=progress)
    return find_model(model)


def _shares(steps: Iterable[StoreProgress]) -> Iterator[float]:
    """Yield the share of the known blobs' bytes that is here after each step, 0 to 1; it never falls."""
    done: dict[Digest, tuple[int, int]] = {}
    share = 0.0
    for step in steps:
        if step.digest is not None:
            done[step.digest] = (step.completed or 0, step.total or 0)
            share = max(share, sum(n for n, _ in done.values()) / max(1, sum(n for _, n in done.values())))
            yield share
    yield 1.0
