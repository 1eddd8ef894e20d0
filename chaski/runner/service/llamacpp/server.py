"""llama.cpp's own server in this process, spoken to over a socket in a private folder.

`xllamacpp` offers completions from Python as well, but neither tokens of a text nor a way to end an answer
before its first token; its HTTP interface has both.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from chaski.errors import ChaskiError, ModelError, OptionError, UnsupportedError
from chaski.model.pooling import Pooling
from chaski.runner.service.llamacpp.settings import LlamaSettings

__all__ = ["LlamaServer"]

# Longer paths of sockets are cut off by the system.
_MAX_PATH = 100
_ERRORS: dict[int, type[ChaskiError]] = {400: OptionError, 501: UnsupportedError}
_POOLING = {
    Pooling.MEAN: "LLAMA_POOLING_TYPE_MEAN",
    Pooling.FIRST: "LLAMA_POOLING_TYPE_CLS",
    Pooling.LAST: "LLAMA_POOLING_TYPE_LAST",
}


class LlamaServer:
    """A model in llama.cpp. Safe to use from several threads; made by the main one.

    While it loads, the interpreter stands still.
    """

    def __init__(self, settings: LlamaSettings) -> None:
        import xllamacpp

        self._folder = _private_folder()
        self._socket = self._folder / "llama.sock"
        self._key = secrets.token_urlsafe()
        parameters = _parameters(xllamacpp, settings)
        parameters.hostnames, parameters.api_keys = [str(self._socket)], [self._key]
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            self._server = xllamacpp.Server(parameters)
        except RuntimeError as error:
            self.close()
            raise ModelError(
                f"{settings.path}: llama.cpp cannot load this model: {error} Its log on the standard error "
                "says what is wrong; it may not know the architecture either"
            ) from None
        finally:
            # llama.cpp takes signals for itself, and would end without the process.
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """One reply, as JSON. Raises ChaskiError for a refusal."""
        with closing(self._connection()) as connection:
            return json.loads(self._reply(connection, path, body).read())

    def stream(
        self, path: str, body: Mapping[str, Any], opened: Callable[[socket.socket], None]
    ) -> Iterator[Mapping[str, Any]]:
        """The pieces of an answer. `opened` gets the socket: shutting it down ends the answer."""
        with closing(self._connection()) as connection:
            connection.connect()
            opened(connection.sock)
            try:
                for line in self._reply(connection, path, body):
                    kind, _, data = line.partition(b": ")
                    if kind == b"error":
                        raise _refusal(500, data)
                    if kind == b"data":
                        piece = json.loads(data)
                        if "error" in piece:
                            raise _refusal(500, data)
                        yield piece
            except (OSError, HTTPException) as error:
                raise ChaskiError(f"llama.cpp ended in the middle of an answer: {error!r}") from None

    def close(self) -> None:
        """Take the socket away. The model itself goes with the process."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reply(self, connection: HTTPConnection, path: str, body: Mapping[str, Any]) -> HTTPResponse:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(response.status, response.read())
        return response

    def _connection(self) -> HTTPConnection:
        return _LocalConnection(self._socket)


class _LocalConnection(HTTPConnection):
    """HTTP over a socket of the file system."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _parameters(xllamacpp: Any, settings: LlamaSettings) -> Any:
    """The settings in the words of llama.cpp."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.path
    parameters.n_ctx = settings.cells
    parameters.n_parallel = settings.parallel
    # A text that becomes one vector is computed in one batch.
    parameters.n_batch = max(settings.num_batch, settings.context if settings.pooling else 32)
    parameters.n_ubatch = parameters.n_batch
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.threads
    for name, dtype in (("cache_type_k", settings.types.keys), ("cache_type_v", settings.types.values)):
        setattr(parameters, name, xllamacpp.ggml_type[f"GGML_TYPE_{dtype.value.upper()}"])
    flash = "ENABLED" if settings.flash_attention else "DISABLED"
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{flash}"]
    if settings.pooling is not None:
        parameters.embedding = True
        parameters.pooling_type = xllamacpp.llama_pooling_type[_POOLING[settings.pooling]]
    parameters.cache_prompt = settings.prompt_cache
    parameters.ctx_shift = True
    parameters.special = True  # control tokens are sorted out here
    parameters.cache_ram_mib = 0  # no second cache of prompts beside the slots
    parameters.warmup = parameters.ui = parameters.endpoint_slots = False
    parameters.verbosity = 1  # errors
    return parameters


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="chaski-"))
    if len(str(folder)) > _MAX_PATH - len("/llama.sock"):
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="chaski-", dir="/tmp"))
    return folder


def _refusal(status: int, data: bytes) -> ChaskiError:
    """The error that a reply tells."""
    try:
        error = json.loads(data)
        error = error.get("error", error)
        status, message = int(error.get("code", status)), str(error.get("message", error))
    except (ValueError, AttributeError):
        message = data.decode(errors="replace")[:200]
    return _ERRORS.get(status, ChaskiError)(f"llama.cpp: {message}")
