"""llama.cpp's own server in this process, reached over a socket in a private folder.

`xllamacpp` also offers completions in Python, but not the tokens of a text, and no way to end an answer
before its first token. Its HTTP interface provides both.
"""

from __future__ import annotations

import json
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from chaski.errors import ChaskiError, ModelError, OptionError, UnsupportedError
from chaski.model.pooling import Pooling
from chaski.runner.channels.llamacpp.images import data_url
from chaski.runner.channels.llamacpp.settings import LlamaSettings

__all__ = ["LlamaServer"]

# The system cuts off longer socket paths.
_MAX_PATH = 100
# The tokens of an image that see each other are computed in one batch; the models in question have fewer.
_IMAGE_TOKENS = 512
# The server's own chat template. Prompts are written by chaski, and this template only counts images.
_PLAIN = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_ERRORS: dict[int, type[ChaskiError]] = {400: OptionError, 501: UnsupportedError}
_POOLING = {
    Pooling.MEAN: "LLAMA_POOLING_TYPE_MEAN",
    Pooling.FIRST: "LLAMA_POOLING_TYPE_CLS",
    Pooling.LAST: "LLAMA_POOLING_TYPE_LAST",
}


class LlamaServer:
    """A model loaded in llama.cpp. Safe to use from several threads; created by the main thread.

    Loading blocks the interpreter.

    has_vision    whether it reads images
    can_shift     whether answers may continue where the context is full; not where there is a projector
    media_marker  the text in place of an image in a prompt
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
                f"{settings.path}: llama.cpp cannot load this model{_beside(settings)}: {error} Its log "
                "on the standard error shows the cause; it may not know the architecture either"
            ) from None
        finally:
            # llama.cpp installs its own signal handlers, which would end llama.cpp but not the process.
            for number, handler in handlers.items():
                signal.signal(number, handler)
        self.can_shift = settings.projector is None
        self.has_vision, self.media_marker = False, ""
        if settings.projector is not None:
            facts = self._tell("/props")
            self.has_vision = bool(facts["modalities"]["vision"])
            self.media_marker = str(facts["media_marker"])

    def image_tokens(self, png: bytes) -> int:
        """Return the number of tokens of an image, including those that llama.cpp puts around it."""
        image = [{"type": "image_url", "image_url": {"url": data_url(png)}}]
        return self._chat_tokens(image) - self._chat_tokens("")

    def _chat_tokens(self, content: Any) -> int:
        body = {"messages": [{"role": "user", "content": content}]}
        return int(self.ask("/v1/chat/completions/input_tokens", body)["input_tokens"])

    def ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request and return the reply as JSON. Raises ChaskiError if the server refuses it."""
        with closing(self._connection()) as connection:
            return json.loads(self._reply(connection, "POST", path, body).read())

    def _tell(self, path: str) -> Any:
        """Return a description as JSON."""
        with closing(self._connection()) as connection:
            return json.loads(self._reply(connection, "GET", path).read())

    def stream(
        self, path: str, body: Mapping[str, Any], opened: Callable[[socket.socket], None]
    ) -> Generator[Mapping[str, Any], None, None]:
        """Yield the pieces of an answer. `opened` receives the socket: shutting it down ends the answer."""
        with closing(self._connection()) as connection:
            connection.connect()
            opened(connection.sock)
            try:
                for line in self._reply(connection, "POST", path, body):
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
        """Remove the socket. The model itself is released when the process ends."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _reply(
        self, connection: HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> HTTPResponse:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise _refusal(response.status, response.read())
        return response

    def _connection(self) -> HTTPConnection:
        return _LocalConnection(self._socket)


class _LocalConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def _parameters(xllamacpp: Any, settings: LlamaSettings) -> Any:
    """Return the settings as llama.cpp's parameters."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.path
    if settings.projector is not None:
        parameters.mmproj.path = settings.projector
        parameters.chat_template = _PLAIN
    parameters.n_ctx = settings.cells
    parameters.n_parallel = settings.parallel
    parameters.n_batch = parameters.n_ubatch = max(settings.num_batch, _least_batch(settings))
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = settings.threads
    for name, dtype in (("cache_type_k", settings.types.keys), ("cache_type_v", settings.types.values)):
        setattr(parameters, name, xllamacpp.ggml_type[f"GGML_TYPE_{dtype.value.upper()}"])
    # llama.cpp itself distributes a model among several GPUs.
    if settings.gpus.num_gpu is not None:
        parameters.n_gpu_layers = settings.gpus.num_gpu
    if settings.gpus.main_gpu is not None:
        parameters.main_gpu = settings.gpus.main_gpu
    flash = "ENABLED" if settings.flash_attention else "DISABLED"
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type[f"LLAMA_FLASH_ATTN_TYPE_{flash}"]
    if settings.pooling is not None:
        parameters.embedding = True
        parameters.pooling_type = xllamacpp.llama_pooling_type[_POOLING[settings.pooling]]
    parameters.cache_prompt = settings.prefix_cache
    parameters.ctx_shift = True
    parameters.special = True  # control tokens are sorted out here
    parameters.cache_ram_mib = 0  # no second cache of prompts in addition to the slots
    parameters.warmup = parameters.ui = parameters.endpoint_slots = False
    parameters.verbosity = 1  # errors only
    return parameters


def _beside(settings: LlamaSettings) -> str:
    return "" if settings.projector is None else f" with its projector {Path(settings.projector).name}"


def _least_batch(settings: LlamaSettings) -> int:
    """Return the number of tokens that must be computed together."""
    if settings.pooling:
        return settings.context  # a text that becomes one vector
    return 32 if settings.projector is None else _IMAGE_TOKENS


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="chaski-"))
    if len(str(folder)) > _MAX_PATH - len("/llama.sock"):
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="chaski-", dir="/tmp"))
    return folder


def _refusal(status: int, data: bytes) -> ChaskiError:
    """Return the error that a reply reports."""
    try:
        error = json.loads(data)
        error = error.get("error", error)
        status, message = int(error.get("code", status)), str(error.get("message", error))
    except (ValueError, AttributeError):
        message = data.decode(errors="replace")[:200]
    return _ERRORS.get(status, ChaskiError)(f"llama.cpp: {message}")
