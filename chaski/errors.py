"""Every error that a user of chaski can meet.

ChaskiError
├── FormatError               a file is not what it says it is
│   ├── GGUFError
│   ├── ModelfileError        a recipe for `create` that cannot be read
│   ├── TemplateError         a chat template fails, or exceeds its limits
│   └── TokenizerError        a vocabulary that cannot be used
├── ImageError                an image cannot be read, or exceeds a limit
├── UnsupportedError          a valid file or request that this version cannot serve
│   └── MissingPackageError   a package that only some work needs is not installed
├── ModelError                weights or metadata do not fit the architecture
├── ModelNotFoundError        no model of that name or path
├── AdapterError              a file is no LoRA adapter, or none for this model
├── AdapterNotFoundError      no adapter of that name is loaded
├── ResponseNotFoundError     no response of that id is remembered
├── StateError                a saved state is not of this model, or cannot be kept or found
├── StoreError                the model store is damaged, or cannot be written
├── RegistryError             a registry cannot be reached, refuses, or says what is not so
│   ├── AccessDeniedError     it wants other credentials
│   └── DigestError           its bytes are not those that were asked for
├── OutOfMemoryError          the plan does not fit; says what was needed
├── CacheError
│   ├── CacheFullError        no free cells for the batch
│   └── NotSupportedError     this cache cannot do that; remove the whole sequence instead
├── WorkerError               the process of a model died, or what it says cannot be understood
├── ClusterError              the machines of a cluster cannot be reached or used
├── ComputationError          what computes a model failed, for one request or for all that ran
│   └── DeviceError           a GPU failed, and this process can compute nothing on it any more
├── ForkError                 a model that another process loaded, of which this one is a fork
├── BusyError                 too many requests are waiting already
├── SamplingError             options or logits that cannot be sampled from
└── OptionError               a bad argument, option or environment variable
    └── ContextLengthError    a prompt is longer than the context
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "AccessDeniedError",
    "AdapterError",
    "AdapterNotFoundError",
    "BusyError",
    "CacheError",
    "CacheFullError",
    "ChaskiError",
    "ClusterError",
    "ComputationError",
    "ContextLengthError",
    "DeviceError",
    "DigestError",
    "FileNotKnownError",
    "ForkError",
    "FormatError",
    "GGUFError",
    "ImageError",
    "MissingPackageError",
    "ModelError",
    "ModelNotFoundError",
    "ModelfileError",
    "NotSupportedError",
    "OptionError",
    "OutOfMemoryError",
    "RegistryError",
    "ResponseNotFoundError",
    "SamplingError",
    "StateError",
    "StoreError",
    "TemplateError",
    "TokenizerError",
    "UnsupportedError",
    "WorkerError",
]


class ChaskiError(Exception):
    """Base of all errors that chaski raises for input, files and limits."""


class FormatError(ChaskiError):
    """A file or a text in a known format is malformed."""


class GGUFError(FormatError):
    """A GGUF file is malformed; the message says what and where."""


class ModelfileError(FormatError):
    """A Modelfile cannot be read; the message says which line."""


class TemplateError(FormatError):
    """A chat template cannot be parsed, fails, or exceeds its limits."""


class TokenizerError(FormatError):
    """The vocabulary or the tokenizer settings of a file cannot be used."""


class ImageError(ChaskiError):
    """An image cannot be read, or exceeds a limit; the message says what it is and which limit."""


class UnsupportedError(ChaskiError):
    """A valid file or request needs something that this version does not have."""


class MissingPackageError(UnsupportedError):
    """A package that only some work needs is not installed; the message says how to install it."""


def extra_command(extra: str) -> str:
    """Return the command that installs an extra. On PyPI the name `chaski` belongs to another project."""
    return f"pip install 'chaski-llm[{extra}]'"


@contextmanager
def optional_package(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Turn a failed import in the block into a `MissingPackageError` that names the package and its extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"{purpose} needs the package {package}; install it with: {extra_command(extra)}"
        ) from error


class ModelError(ChaskiError):
    """Weights or metadata of a file do not fit its architecture."""


class ModelNotFoundError(ChaskiError):
    """There is no model of that name and no file at that path."""


class AdapterError(ChaskiError):
    """A file is no LoRA adapter, or does not fit the model; the message says which tensor or key."""


class AdapterNotFoundError(ChaskiError):
    """The model has no adapter of that name."""


class ResponseNotFoundError(ChaskiError):
    """The server does not remember a response of that id."""


class FileNotKnownError(ChaskiError):
    """The server has no file or batch of that id for whoever asks."""


class StateError(ChaskiError):
    """A saved state is not of this model or not there, or cannot be kept; the message says why."""


class StoreError(ChaskiError):
    """The model store is damaged, or cannot be read or written."""


class RegistryError(ChaskiError):
    """A registry cannot be reached, refuses a request, or answers what is not so."""


class AccessDeniedError(RegistryError):
    """A registry wants credentials that it was not given."""


class DigestError(RegistryError):
    """The bytes that a registry gave do not have the digest that they were asked for by."""


class OutOfMemoryError(ChaskiError):
    """The memory that a plan needs cannot be reserved."""


class CacheError(ChaskiError):
    """A key/value cache cannot do what was asked."""


class CacheFullError(CacheError):
    """There are not enough free cells for the batch."""


class NotSupportedError(CacheError):
    """The cache cannot change a sequence in this way."""


class WorkerError(ChaskiError):
    """The process that computes a model ended or failed; a new one is started for the next request."""


class ClusterError(ChaskiError):
    """The machines of a cluster cannot be reached or used; the message says which, and why."""


class ComputationError(ChaskiError):
    """The computation of the model failed; the request is lost, and the next one may be sent."""


class DeviceError(ComputationError):
    """A GPU failed, and computes nothing for this process any more; another process may find it well."""


class ForkError(ChaskiError):
    """The model was loaded before this process was forked, and can only be used where it was loaded."""


class BusyError(ChaskiError):
    """Too many requests are waiting already; `retry_after` is in seconds."""

    retry_after = 1


class SamplingError(ChaskiError):
    """Sampling options are out of range, or the logits hold a NaN."""


class OptionError(ChaskiError):
    """An argument, an option or an environment variable has a bad value."""


class ContextLengthError(OptionError):
    """A prompt has more tokens than the context holds, and may not be shortened.

    `length` is how many tokens it has and `limit` how many there may be; both are 0 where that is not known.
    """

    def __init__(self, message: str, length: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.length = length
        self.limit = limit


def class_name(error: ChaskiError) -> str:
    """Return the name under which an error is sent to another process: that of its nearest class here."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in __all__)


def error_class(name: str, otherwise: type[ChaskiError] = WorkerError) -> type[ChaskiError]:
    """Return the class of this name, by which another process sends an error, or `otherwise`."""
    found: type[ChaskiError] = globals()[name] if name in __all__ else otherwise
    return found
