"""OpenAI's files and batches, whose requests are answered in the background."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from chaski.errors import OptionError
from chaski.server.batches.files import open_private
from chaski.server.dialects.common.metadata import read_metadata
from chaski.server.dialects.common.pages import page_of
from chaski.server.fields.ignored import Ignored, ignored_headers
from chaski.server.fields.reader import Fields
from chaski.server.http.api import OPENAI
from chaski.server.http.endpoint import HTTPRequest, Reply, client_of
from chaski.server.http.problems import problem_of
from chaski.server.network.arrivals import Arrival
from chaski.server.network.budget import TooLargeError
from chaski.server.network.jsons import dump
from chaski.server.services import Services

__all__ = ["batch", "batches", "cancel", "content", "create", "delete", "file", "files", "upload"]

_MOST_BYTES = 200 << 20
"""Largest size of an uploaded file in bytes, as in OpenAI's API."""
_FORM_BYTES = 1 << 16
"""Largest size of a form without its file, in bytes."""
_PURPOSE = "batch"


async def upload(request: Request) -> Response:
    """Store a file, which is sent as a form with the fields `file` and `purpose`."""
    services: Services = request.app.state.services
    try:
        ignored = Ignored()
        kept = dump(await _receive(services, request, ignored))
        return Response(kept, 200, ignored_headers(tuple(ignored)), "application/json")
    except Exception as error:
        return OPENAI.refusal(problem_of(error))


async def files(http: HTTPRequest) -> Reply:
    """List a page of the client's files (`order`, `limit`, `after`), or of those with one `purpose`."""
    files, owner = http.services.files, _owner(http)
    query, find = http.request.query_params, partial(http.services.files.find, owner)

    def read() -> dict[str, Any]:
        ids = files.ids(owner)
        if purpose := query.get("purpose"):
            ids = [each for each in ids if (found := find(each)) and found["purpose"] == purpose]
        return page_of(ids, find, query)

    page: Reply = await files.run(read)
    return page


async def file(http: HTTPRequest) -> Reply:
    """Describe a file."""
    return _described(http.services.files.get(_owner(http), http.request.path_params["id"]))


async def content(http: HTTPRequest) -> Reply:
    """Return the bytes of a file."""
    path = http.services.files.content(_owner(http), http.request.path_params["id"])
    return FileResponse(path, media_type="application/jsonl")


async def delete(http: HTTPRequest) -> Reply:
    """Delete a file."""
    file_id = http.request.path_params["id"]
    await http.services.files.run(http.services.files.remove, _owner(http), file_id)
    return {"id": file_id, "object": "file", "deleted": True}


async def create(http: HTTPRequest) -> Reply:
    """Start to answer the requests of a file."""
    fields = Fields(http.body)
    created = await http.services.batches.create(
        _owner(http),
        fields.text("input_file_id"),
        fields.text("endpoint"),
        fields.text("completion_window", default="24h"),
        read_metadata(fields),
    )
    return _described(created)


async def batches(http: HTTPRequest) -> Reply:
    """List a page of the client's batches (`order`, `limit`, `after`)."""
    found, owner = http.services.batches, _owner(http)
    query = http.request.query_params
    read = partial(page_of, load=partial(found.find, owner), query=query)
    page: Reply = await http.services.files.run(lambda: read(found.ids(owner)))
    return page


async def batch(http: HTTPRequest) -> Reply:
    """Describe a batch and its progress."""
    return _described(http.services.batches.get(_owner(http), http.request.path_params["id"]))


async def cancel(http: HTTPRequest) -> Reply:
    """Cancel a batch and keep its answers so far."""
    return _described(http.services.batches.cancel(_owner(http), http.request.path_params["id"]))


def _described(found: Any) -> dict[str, Any]:
    return dict(found)


def _owner(http: HTTPRequest) -> str:
    owner: str = http.services.files.owner_of(http.owner)
    return owner


async def _receive(services: Services, request: Request, ignored: Ignored) -> dict[str, Any]:
    """Receive a form and store its file. Other fields of the form are recorded as ignored."""
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced[:20]) > _MOST_BYTES + _FORM_BYTES:
        raise TooLargeError(f"a file may have at most {_MOST_BYTES >> 20} MB")
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise OptionError("the body must be a form (multipart/form-data) with the fields file and purpose")
    await services.files.run(services.files.require_room, int(announced))
    with services.forms.enter() as arrival:
        pieces = _limited(arrival, request, services.settings.body_timeout)
        parser = MultiPartParser(
            request.headers, pieces, max_files=1, max_fields=8, max_part_size=_FORM_BYTES
        )
        try:
            try:
                form = await parser.parse()
            except (MultiPartException, KeyError) as error:
                raise OptionError(f"the form cannot be read: {error}") from None
            sent, purpose = form.get("file"), form.get("purpose")
            for name in sorted(form.keys() - {"file", "purpose"}):
                ignored.add("field", name)
            if not isinstance(sent, UploadFile):
                raise OptionError("the form must contain a field file with a file")
            if purpose != _PURPOSE:
                raise OptionError(f"purpose must be {_PURPOSE}, the only use of files on this server")
            owner = services.files.owner_of(client_of(request.scope) if services.settings.has_keys else "")
            name = (sent.filename or "file.jsonl")[:255]
            return await services.files.run(_keep, services, owner, sent, name)
        finally:
            # Not `form.close()`: a form that breaks off does not contain its file.
            for file in parser._files_to_close_on_error:
                file.close()


def _keep(services: Services, owner: str, sent: UploadFile, name: str) -> dict[str, Any]:
    services.files.require_room(sent.size or 0)
    with services.files.receiving(owner) as path:
        with open_private(path) as kept:
            while piece := sent.file.read(1 << 20):
                kept.write(piece)
        return dict(services.files.add(owner, path, name, _PURPOSE))


async def _limited(arrival: Arrival, request: Request, idle_seconds: float) -> AsyncGenerator[bytes, None]:
    async for piece in arrival.pieces(request.receive, idle_seconds):
        if arrival.length > _MOST_BYTES + _FORM_BYTES:
            raise TooLargeError(f"a file may have at most {_MOST_BYTES >> 20} MB")
        yield piece
