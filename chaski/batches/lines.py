"""The input file of a batch in OpenAI's format: one line per request, each with a unique id."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from chaski.errors import FormatError
from chaski.formats.bounded_json import load_json
from chaski.regular_files import open_regular

__all__ = ["URLS", "BatchLine", "check_lines", "read_lines"]

URLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/responses",
)
"""The routes allowed in a line."""

_TEXT_URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_MAX_LINE = 64 << 20
_MAX_VALUES = 500_000
_MAX_ID = 512
_FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True)
class BatchLine:
    """A request: `body` is sent to `url`, and its result is stored under `custom_id`."""

    number: int
    custom_id: str
    url: str
    body: Mapping[str, Any]

    @cached_property
    def request_id(self) -> str:
        """The id of the request in the results file. Equal requests have equal ids."""
        content = json.dumps([self.url, self.body], sort_keys=True, separators=(",", ":"))
        return f"batch_req_{blake2b(content.encode(errors='replace'), digest_size=12).hexdigest()}"


def read_lines(path: Path, model: str | None = None, receipts: bool = False) -> Iterator[BatchLine]:
    """Read the requests of a file one by one. `model` is the default for requests that name none.

    With `receipts`, requests for texts ask for a receipt unless they say otherwise. Raises FormatError, with
    the line number, for an invalid request.
    """
    try:
        opened = open_regular(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    with opened as file:
        number = 0
        while data := file.readline(_MAX_LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(data) > _MAX_LINE:
                raise FormatError(f"{where}: it has more than {_MAX_LINE >> 20} MB")
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
            if not data.isspace():
                line = _line(number, data, where, model)
                yield _with_receipt(line) if receipts else line


def check_lines(path: Path, model: str | None = None, receipts: bool = False) -> dict[str, str]:
    """Check all requests of a file; return their ids in order, each with its `BatchLine.request_id`.

    Raises FormatError like `read_lines`, and for duplicate ids or a file without requests.
    """
    found: dict[str, str] = {}
    for line in read_lines(path, model, receipts):
        if line.custom_id in found:
            raise FormatError(
                f"{path}, line {line.number}: an earlier line has the custom_id '{line.custom_id:.80}', too; "
                "every request needs one of its own"
            )
        found[line.custom_id] = line.request_id
    if not found:
        raise FormatError(f"{path}: it has no requests; each line is a JSON object with {', '.join(_FIELDS)}")
    return found


def _with_receipt(line: BatchLine) -> BatchLine:
    makes_text = line.url in _TEXT_URLS
    return replace(line, body={"receipt": True, **line.body}) if makes_text else line


def _line(number: int, data: bytes, where: str, model: str | None) -> BatchLine:
    try:
        found = load_json(data, _MAX_VALUES)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: no JSON: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{where}: a request is an object with {', '.join(_FIELDS)}")
    custom_id, method, url, body = (found.get(name) for name in _FIELDS)
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_ID:
        raise FormatError(f"{where}: custom_id must be a text of 1 to {_MAX_ID} characters")
    if any("\ud800" <= letter <= "\udfff" for letter in custom_id):
        raise FormatError(f"{where}: custom_id has half of a surrogate pair, which is no character")
    if method != "POST":
        raise FormatError(f"{where}: method must be POST, not {method!s:.40}")
    if url not in URLS:
        raise FormatError(f"{where}: url must be one of {', '.join(URLS)}, not {url!s:.80}")
    if not isinstance(body, dict):
        raise FormatError(f"{where}: body must be an object")
    if body.get("stream"):
        raise FormatError(f"{where}: answers of a batch cannot be streamed; leave out stream")
    if body.get("model") is None:
        if model is None:
            raise FormatError(f"{where}: the body names no model; give one for all such lines by --model")
        body = {**body, "model": model}
    return BatchLine(number, custom_id, url, body)
