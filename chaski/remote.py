"""A running server, as commands see it: `Remote` asks it."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct

from chaski.address import Address
from chaski.errors import ChaskiError, ModelNotFoundError

if TYPE_CHECKING:
    from http.client import HTTPResponse

__all__ = ["Remote", "chosen_server", "running_server"]

# A server on this machine answers at once, or is not there.
_KNOCK_SECONDS = 1.0
_MAX_LINE = 8 << 20
_USUAL_ADDRESS = ""  # as `Address` reads nothing


class Remote(Struct, frozen=True):
    """A server at an address, and the key that it may want."""

    address: Address
    key: str | None

    @property
    def url(self) -> str:
        return self.address.url

    def is_there(self) -> bool:
        """Return whether the server answers."""
        try:
            with self._ask("HEAD", "/", None, _KNOCK_SECONDS) as response:
                return response.status == 200
        except ChaskiError:
            return False

    def get(self, path: str, patience: float | None = None) -> Any:
        """The object at an address. Raises ChaskiError, also after `patience` seconds without an answer."""
        with self._ask("GET", path, None, patience) as response:
            return _object(response.read())

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer to an object. Raises ModelNotFoundError, or ChaskiError with what the server says."""
        with self._ask("POST", path, body) as response:
            return _object(response.read())

    def reply(self, path: str, body: Mapping[str, Any]) -> tuple[int, Mapping[str, str], Any]:
        """Return status, headers (names in lower case) and object of an answer, refusals too.

        Raises ChaskiError where there is no server, or it answers something else.
        """
        with self._exchange("POST", path, body) as response:
            headers = {name.lower(): value for name, value in response.headers.items()}
            return response.status, headers, _object(response.read())

    def tell(self, method: str, path: str, body: Mapping[str, Any]) -> None:
        """Send a request whose answer has no body. Raises as `post` does."""
        with self._ask(method, path, body) as response:
            response.read()

    def has(self, path: str) -> bool:
        """Return whether the server has anything at the address."""
        try:
            with self._ask("HEAD", path, None):
                return True
        except ModelNotFoundError:
            return False

    def upload(self, path: str, file: Path) -> None:
        """Send the bytes of a file. Raises ChaskiError."""
        with file.open("rb") as data, self._ask("POST", path, data, None, file.stat().st_size) as response:
            response.read()

    def lines(self, path: str, body: Mapping[str, Any]) -> Generator[Any, None, None]:
        """The objects of a stream as they come; closing it stops the work."""
        with self._ask("POST", path, body) as response:
            yield from _objects(response)

    def follow(self, path: str, patience: float) -> Generator[Any, None, None]:
        """The objects of a stream that is asked for by its address, until the server ends it.

        Raises ChaskiError, also where nothing comes for `patience` seconds.
        """
        with self._ask("GET", path, None, patience) as response:
            yield from _objects(response)

    @contextmanager
    def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | BinaryIO | None,
        timeout: float | None = None,
        size: int | None = None,
    ) -> Iterator[HTTPResponse]:
        """The response to an object, or to a file of that size. Raises what a refusal says."""
        with self._exchange(method, path, body, timeout, size) as response:
            if response.status >= 400:
                raise _failure(response)
            yield response

    @contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | BinaryIO | None,
        timeout: float | None = None,
        size: int | None = None,
    ) -> Iterator[HTTPResponse]:
        """The response, whatever its status. Raises ChaskiError where there is no server."""
        from http.client import HTTPConnection, HTTPException, HTTPSConnection

        address = self.address
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        prefix = f"/{address.path}" if address.path else ""
        headers = {"Content-Type": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        data = json.dumps(body).encode() if isinstance(body, Mapping) else body
        if size is not None:
            headers |= {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        with closing(kind(address.reachable_host, address.port, timeout=timeout)) as connection:
            try:
                connection.request(method, prefix + path, data, headers)
                yield connection.getresponse()
            except (OSError, HTTPException) as error:
                raise ChaskiError(
                    f"could not connect to a server at {self.url} ({error}); run 'chaski serve' to start one"
                ) from None


def chosen_server() -> Remote | None:
    """The server that `OLLAMA_HOST` names; None where it is not set, and commands work on the store here."""
    from chaski.env import Environment

    return running_server() if Environment.read().host else None


def running_server() -> Remote:
    """The server that the environment names, else the one at the usual address, whether it runs or not."""
    from chaski.env import Environment

    environment = Environment.read()
    return Remote(Address.parse(environment.host or _USUAL_ADDRESS), environment.api_key)


def _failure(response: HTTPResponse) -> ChaskiError:
    try:
        text = json.loads(response.read(_MAX_LINE))["error"]
    except (ValueError, LookupError, TypeError):
        text = f"the server answered {response.status} {response.reason}"
    return ModelNotFoundError(text) if response.status == 404 else ChaskiError(text)


def _objects(response: HTTPResponse) -> Iterator[Any]:
    while line := response.readline(_MAX_LINE):
        found = _object(line)
        if found.get("error"):
            raise ChaskiError(found["error"])
        yield found


def _object(data: bytes) -> Any:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ChaskiError("the server answered something else than a JSON object")
    return found
