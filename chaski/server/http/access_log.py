"""The access log: a line per request with its time, client, path and result.

A line never contains a prompt, an answer, a query or a key. The log gets lines of text for people, and the
file gets lines of JSON for programs.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from starlette.types import Scope

from chaski.server.http.log_file import LogFile
from chaski.server.telemetry.exchange import Exchange

__all__ = ["AccessLog"]

_log = logging.getLogger(__name__)

_MAX_TEXT = 200
_MAX_METHOD = 16


class AccessLog:
    """Listener that writes the line of a request at its end, to the log and to `file` if there is one."""

    def __init__(self, file: LogFile | None = None) -> None:
        self._file = file

    def __call__(self, scope: Scope, exchange: Exchange) -> None:
        seconds = exchange.ended - exchange.started
        if _log.isEnabledFor(logging.INFO):
            _log.info(_text(scope, exchange, seconds))
        if self._file is not None:
            self._file.write(_json(scope, exchange, seconds))


def _text(scope: Scope, exchange: Exchange, seconds: float) -> str:
    now = datetime.now().astimezone().isoformat(" ", "milliseconds")
    client = scope.get("client") or ("-", 0)
    # Clients choose the path, so line breaks and control sequences are escaped, and its length is limited.
    path = "".join(char if char.isprintable() else repr(char)[1:-1] for char in scope["path"][:_MAX_TEXT])
    cut = "" if exchange.has_ended else " cut off"
    method = scope["method"][:_MAX_METHOD]
    size = f"{exchange.status} {seconds * 1000:.1f} ms {exchange.sent} bytes"
    return f'{now} {client[0]} "{method} {path}" {size}{cut}'


def _json(scope: Scope, exchange: Exchange, seconds: float) -> bytes:
    """Return a line of JSON in ASCII, which escapes the text of clients."""
    client = scope.get("client")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "id": exchange.id,
        "client": client[0] if client else None,
        "key": exchange.key,
        "method": scope["method"][:_MAX_METHOD],
        "path": scope["path"][:_MAX_TEXT],
        "status": exchange.status,
        "seconds": round(seconds, 6),
        "bytes": exchange.sent,
        "cut_off": not exchange.has_ended,
        **_of_models(exchange),
    }
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _of_models(exchange: Exchange) -> dict[str, object]:
    """Return the figures of a request's jobs, summed over several jobs; None if there are none."""
    records = exchange.records
    done = [record.done for record in records if record.done is not None]
    first = [at for record in records if (at := record.first_token_at) is not None]
    # If `n` asks for several answers, they may end in different ways.
    endings = dict.fromkeys(record.ending for record in records if record.ending is not None)
    prompts = [r.prompt_tokens if r.done is None else r.done.prompt_tokens for r in records]
    answers = [r.generated_tokens if r.done is None else r.done.generated_tokens for r in records]
    return {
        "model": records[0].model[:_MAX_TEXT] if records else None,
        "prompt_tokens": sum(prompts) if records else None,
        "cached_tokens": sum(each.cached_tokens for each in done) if done else None,
        "generated_tokens": sum(answers) if records else None,
        "dropped_tokens": sum(each.dropped_tokens for each in done) if done else None,
        "first_token_seconds": round(min(first) - exchange.started, 6) if first else None,
        "done": ",".join(endings) or None,
        "error": exchange.error or next((record.error for record in records if record.error), None),
    }
