"""All errors that chaski raises for users.

ChaskiError
├── FormatError               a file is malformed
│   ├── GGUFError
│   ├── ModelfileError        a Modelfile that cannot be read
│   ├── ReceiptError          a receipt that cannot be read, or not be verified
│   ├── TemplateError         a chat template fails, or exceeds its limits
│   └── TokenizerError        a vocabulary that cannot be used
├── ImageError                an image cannot be read, or exceeds a limit
├── UnsupportedError          a valid file or request that this version cannot serve
│   └── MissingPackageError   an optional package is not installed
├── ModelError                weights or metadata do not fit the architecture
├── ModelNotFoundError        no model of that name or path
├── AdapterError              a file is not a LoRA adapter, or does not fit the model
├── AdapterNotFoundError      no adapter of that name is loaded
├── ResponseNotFoundError     no response with that id is stored
├── StateError                a saved state is missing, of another model, or cannot be stored
├── StoreError                the model store is damaged, or cannot be written
├── RegistryError             a registry cannot be reached, refuses, or sends invalid data
│   ├── AccessDeniedError     it requires other credentials
│   └── DigestError           its bytes do not have the requested digest
├── OutOfMemoryError          the plan does not fit; names the required memory
│   └── NoNodeError           no node of a cluster could hold the model, even if it held no other
├── CacheError
│   ├── CacheFullError        no free cells for the batch
│   └── NotSupportedError     this cache cannot do that; remove the whole sequence instead
├── WorkerError               the process of a model died, or sent an invalid message
│   └── ClosedError           the model was closed, and cannot be used any more
├── ClusterError              the machines of a cluster cannot be reached or used
├── ComputationError          the computation failed, for one request or for all running ones
│   └── DeviceError           a GPU failed, and this process can no longer use it
├── ForkError                 the model was loaded before this process was forked
├── BusyError                 too many requests are already waiting
│   └── NoReplicaError        no machine of the cluster can answer now
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
    "ClosedError",
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
    "NoNodeError",
    "NoReplicaError",
    "NotSupportedError",
    "OptionError",
    "OutOfMemoryError",
    "ReceiptError",
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


class ReceiptError(FormatError):
    """A receipt cannot be read, or not be verified with what is given."""


class TemplateError(FormatError):
    """A chat template cannot be parsed, fails, or exceeds its limits."""


class TokenizerError(FormatError):
    """The vocabulary or the tokenizer settings of a file cannot be used."""


class ImageError(ChaskiError):
    """An image cannot be read, or exceeds a limit; the message says what it is and which limit."""


class UnsupportedError(ChaskiError):
    """A valid file or request needs something that this version does not have."""


class MissingPackageError(UnsupportedError):
    """An optional package is not installed; the message says how to install it."""


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
    """A file is not a LoRA adapter or does not fit the model; the message names the tensor or key."""


class AdapterNotFoundError(ChaskiError):
    """The model has no adapter of that name."""


class ResponseNotFoundError(ChaskiError):
    """The server stores no response with that id."""


class FileNotKnownError(ChaskiError):
    """The server has no file or batch with that id for this client."""


class StateError(ChaskiError):
    """A saved state is missing, belongs to another model, or cannot be stored; the message says why."""


class StoreError(ChaskiError):
    """The model store is damaged, or cannot be read or written."""


class RegistryError(ChaskiError):
    """A registry cannot be reached, refuses a request, or sends invalid data."""


class AccessDeniedError(RegistryError):
    """A registry requires credentials that were not given."""


class DigestError(RegistryError):
    """The bytes that a registry sent do not have the requested digest."""


class OutOfMemoryError(ChaskiError):
    """The memory that a plan needs cannot be reserved."""


class NoNodeError(OutOfMemoryError):
    """No node of a cluster could hold the model, even if it held no other."""


class CacheError(ChaskiError):
    """A key/value cache cannot carry out an operation."""


class CacheFullError(CacheError):
    """There are not enough free cells for the batch."""


class NotSupportedError(CacheError):
    """The cache cannot change a sequence in this way."""


class WorkerError(ChaskiError):
    """The process that computes a model ended or failed; a new one is started for the next request."""


class ClosedError(WorkerError):
    """The model was closed, in this process or in a worker, and cannot be used any more."""


class ClusterError(ChaskiError):
    """The machines of a cluster cannot be reached or used; the message says which, and why."""


class ComputationError(ChaskiError):
    """The computation of the model failed. The request is lost, but further requests are possible."""


class DeviceError(ComputationError):
    """A GPU failed, and this process can no longer use it. Another process may still be able to."""


class ForkError(ChaskiError):
    """The model was loaded before this process was forked, and works only in the process that loaded it."""


class BusyError(ChaskiError):
    """Too many requests are already waiting. `retry_after` is in seconds."""

    retry_after = 1


class NoReplicaError(BusyError):
    """No machine of the cluster can answer now. Ask again after `retry_after` seconds."""

    retry_after = 10


class SamplingError(ChaskiError):
    """Sampling options are out of range, or the logits hold a NaN."""


class OptionError(ChaskiError):
    """An argument, an option or an environment variable has a bad value."""


# Tokens that a recommended context adds to a prompt, and the number that its length is a multiple of.
_ROOM_TO_ANSWER, _STEP = 1024, 4096


class ContextLengthError(OptionError):
    """A prompt has more tokens than the context holds, and may not be shortened.

    `length` is its number of tokens, `limit` the maximum, and `longest` the longest context that the model
    was made for; each is 0 if unknown.
    """

    def __init__(self, message: str, length: int = 0, limit: int = 0, longest: int = 0) -> None:
        super().__init__(message)
        self.length = length
        self.limit = limit
        self.longest = longest

    def way_out(self, settings: str = "OLLAMA_CONTEXT_LENGTH or num_ctx") -> str:
        """Return what helps, in words: the settings with a value that is enough, or another model."""
        if self.longest and self.length > self.longest:
            return (
                f"the model was made for {self.longest} tokens, so shorten the prompt or use a model with a "
                "longer context"
            )
        enough = -(-(self.length + _ROOM_TO_ANSWER) // _STEP) * _STEP
        enough = min(enough, self.longest) if self.longest else enough
        return f"set {settings} to {enough} or more, or shorten the prompt"


def closed() -> ClosedError:
    """Return the error of every call of a closed model."""
    return ClosedError("this model is closed; load it again to use it")


def class_name(error: ChaskiError) -> str:
    """Return the name under which an error is sent to another process: its nearest class in this module."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in __all__)


def error_class(name: str, otherwise: type[ChaskiError] = WorkerError) -> type[ChaskiError]:
    """Return the error class with this name, received from another process, or `otherwise`."""
    found: type[ChaskiError] = globals()[name] if name in __all__ else otherwise
    return found
