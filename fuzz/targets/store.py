"""Modelfiles, manifests and other answers of registries, batches, receipts, and checkpoints to convert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from chaski.batches.lines import check_lines
from chaski.convert.checkpoint import plan_conversion
from chaski.errors import ChaskiError, RegistryError
from chaski.names import ModelName
from chaski.receipts.receipt import Receipt
from chaski.store.http import Access, HttpReply
from chaski.store.hub import Hub
from chaski.store.manifest import Manifest
from chaski.store.modelfile import Modelfile
from chaski.store.registry import Registry
from fuzz.mutations import mixed, mutate_bytes, mutate_json, words
from fuzz.scratch import folder, written
from fuzz.target import Target

__all__ = ["CHECKPOINT", "TARGETS"]

CHECKPOINT = Path(__file__).parents[2] / "tests" / "data" / "checkpoints" / "llama3"


def modelfile(data: bytes) -> None:
    """A Modelfile is refused, or its text parses to the same instructions."""
    found = Modelfile.parse(data)
    with suppress(ChaskiError):
        _ = found.parameters
    assert Modelfile.parse(str(found)) == found, "the written text means something else"


def manifest(data: bytes) -> None:
    """A manifest is refused, or its encoding parses to the same manifest."""
    found = Manifest.parse(data)
    assert Manifest.parse(found.encode()) == found


def registry(data: bytes) -> None:
    """Whatever a registry answers, a pull is refused or finds a manifest, parts or models.

    An input is a list of answers in turn: `[status, headers, body]`.
    """
    try:
        answers = json.loads(data)
    except (ValueError, RecursionError):
        return
    for ask in (_ask_manifest, _ask_split, _ask_models, _ask_upload):
        it = copy(_registry())
        it._http = _Answers(answers)  # type: ignore[assignment]
        with suppress(ChaskiError):
            ask(it)


def batch(data: bytes) -> None:
    """A file of requests is refused with the number of a line, or each request has an id of its own."""
    path = written(data, "batch.jsonl")
    try:
        found = check_lines(path, "tiny", receipts=True)
    except ChaskiError as error:
        if not re.search(r"line \d|no requests", str(error)):
            raise AssertionError("the error names no line") from error
        raise
    assert found == check_lines(path, "tiny", receipts=True)


def receipt(data: bytes) -> None:
    """A receipt is refused, or its text is read as the same receipt."""
    found = Receipt.read(data)
    assert Receipt.read(found.text().encode()) == found


def checkpoint(data: bytes) -> None:
    """A checkpoint with any configuration is planned for conversion, or refused."""
    written(data, "config.json")
    _checkpoint_files()
    plan_conversion(folder())


@cache
def _checkpoint_files() -> None:
    written((CHECKPOINT / "model.safetensors").read_bytes(), "model.safetensors")


@cache
def _registry() -> Registry:
    """Return a registry. Making one reads the certificates of the system, which takes long."""
    return Registry(ModelName.parse("https://host.test/me/model:Q4_K_M"), Access())


def _ask_manifest(it: Registry) -> None:
    Manifest.parse(it.manifest())


def _ask_split(it: Registry) -> None:
    assert Hub(it).split_model().files


def _ask_models(it: Registry) -> None:
    assert Hub(it).models()


def _ask_upload(it: Registry) -> None:
    assert it.uploaded("https://host.test/upload")[0] >= 0


class _Answers:
    """Gives the answers of an input in turn in place of `Http`."""

    def __init__(self, answers: Any) -> None:
        self._answers = list(answers) if isinstance(answers, list) else [answers]

    @contextmanager
    def follow(self, url: str, headers: Mapping[str, str], authorization: str | None) -> Iterator[HttpReply]:
        with self.request("GET", url, headers) as reply:
            yield reply

    @contextmanager
    def request(self, method: str, url: str, *details: Any) -> Iterator[HttpReply]:
        if not self._answers:
            raise RegistryError(f"{url}: no more answers")
        yield HttpReply(_Response(self._answers.pop(0)), url)  # type: ignore[arg-type]

    def close(self) -> None:
        pass


class _Response:
    """An answer `[status, headers, body]`; other values are answered with 200 and their JSON."""

    def __init__(self, answer: Any) -> None:
        status, headers, body = answer if isinstance(answer, list) and len(answer) == 3 else (200, {}, answer)
        self.status = status if type(status) is int else 200
        pairs = headers.items() if isinstance(headers, dict) else ()
        self.headers = [(_latin(name), _latin(value)) for name, value in pairs]
        self._body = body.encode("utf-8", "replace") if isinstance(body, str) else json.dumps(body).encode()

    def iter_stream(self) -> Iterator[bytes]:
        yield self._body


def _latin(value: Any) -> bytes:
    return str(value).encode("latin-1", "replace")


_MODELFILE = words(
    "FROM", "PARAMETER", "TEMPLATE", "SYSTEM", "ADAPTER", "LICENSE", "MESSAGE", "RENDERER", "PARSER",
    "DRAFT", "REQUIRES", '"""', '"', "\n", " ", "\t", "#", "\r\n", "temperature", "stop", "num_ctx", "user",
    "assistant", "system", "0.5", "-1", "\u00a0", "\ufeff", "\u2028", "v1.2.3", "1e999", "true", "nan",
    "\\", "'", "\f", "\v",
)  # fmt: skip

TARGETS = (
    Target("modelfile", modelfile, _MODELFILE),
    Target("manifest", manifest, mutate_json),
    Target("registry", registry, mutate_json),
    Target("batch", batch, mixed(mutate_json, mutate_bytes)),
    Target("receipt", receipt, mutate_json),
    Target("checkpoint", checkpoint, mutate_json),
)
