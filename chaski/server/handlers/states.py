"""Routes that save, restore and erase the states of slots, and that save the state of a model."""

from __future__ import annotations

from starlette.responses import Response

from chaski.errors import OptionError
from chaski.server.answering.requests import ChatRequest
from chaski.server.answering.states import StateService
from chaski.server.dialects.ollama import read_think
from chaski.server.fields.reader import Fields
from chaski.server.http.endpoint import HTTPRequest, Reply
from chaski.server.network.jsons import dump

__all__ = ["change_slot", "keep"]


async def keep(http: HTTPRequest) -> Reply:
    """Save the state of the conversation that a model of the store begins with."""
    fields = Fields(http.body)
    request = ChatRequest(model=fields.text("model", "name"), messages=[], think=read_think(fields))
    state = await http.services.states.keep(request, http.client)
    return {"tokens": state.tokens, "size": state.num_bytes}


async def change_slot(http: HTTPRequest) -> Reply:
    """Save a slot to a file of the server's folder, restore it from one, or erase it, as `?action=` asks."""
    states: StateService = http.services.states
    if states.folder is None:
        return _unsupported("This server cannot save slots; set CHASKI_STATES to a folder for their states")
    query, given = http.request.query_params, http.request.path_params["id"]
    if not given.isascii() or not given.isdecimal() or len(given) > 9:
        raise OptionError(f"Invalid slot ID: {given!r:.40}")
    slot, model = int(given), query.get("model") or Fields(http.body).text("model")
    match query.get("action"):
        case "save":
            name = Fields(http.body).text("filename")
            state = await states.save(model, slot, name, http.client)
            counts = {"n_saved": state.tokens, "n_written": state.num_bytes}
            return {**_file(slot, name), **counts, "timings": {"save_ms": state.seconds * 1e3}}
        case "restore":
            name = Fields(http.body).text("filename")
            state = await states.restore(model, slot, name, http.client)
            counts = {"n_restored": state.tokens, "n_read": state.num_bytes}
            return {**_file(slot, name), **counts, "timings": {"restore_ms": state.seconds * 1e3}}
        case "erase":
            state = await states.erase(model, slot, http.client)
            return {"id_slot": slot, "n_erased": state.tokens}
        case action:
            raise OptionError(f"Invalid action {action!r:.40}; it must be save, restore or erase")


def _file(slot: int, name: str) -> dict[str, object]:
    return {"id_slot": slot, "filename": name}


def _unsupported(message: str) -> Response:
    error = {"code": 501, "message": message, "type": "not_supported_error"}
    return Response(dump({"error": error}), 501, media_type="application/json; charset=utf-8")
