"""chaski runs GGUF language models on this machine, quickly and with reproducible answers.

    import chaski

    model = chaski.load("guide")
    print(model.chat([{"role": "user", "content": "What is chaski?"}]).text)

Names are imported on first use, so that `import chaski` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from chaski.errors import (
    AccessDeniedError,
    AdapterError,
    AdapterNotFoundError,
    BusyError,
    CacheError,
    CacheFullError,
    ChaskiError,
    ClosedError,
    ClusterError,
    ComputationError,
    ContextLengthError,
    DeviceError,
    DigestError,
    FileNotKnownError,
    ForkError,
    FormatError,
    GGUFError,
    ImageError,
    MissingPackageError,
    ModelError,
    ModelfileError,
    ModelNotFoundError,
    NoNodeError,
    NoReplicaError,
    NotSupportedError,
    OptionError,
    OutOfMemoryError,
    ReceiptError,
    RegistryError,
    ResponseNotFoundError,
    SamplingError,
    StateError,
    StoreError,
    TemplateError,
    TokenizerError,
    UnsupportedError,
    WorkerError,
)

if TYPE_CHECKING:
    from chaski.chat.events import Done, Text, Thinking, ToolCall
    from chaski.chat.ranking import Ranked
    from chaski.runner.channels.worker.client import Worker
    from chaski.runner.llm import LLM, Answer
    from chaski.runner.loading.loader import load
    from chaski.runner.loading.pulling import pull
    from chaski.runner.receipts.verify import Verification, verify

__all__ = [
    "LLM",
    "AccessDeniedError",
    "AdapterError",
    "AdapterNotFoundError",
    "Answer",
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
    "Done",
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
    "Ranked",
    "ReceiptError",
    "RegistryError",
    "ResponseNotFoundError",
    "SamplingError",
    "StateError",
    "StoreError",
    "TemplateError",
    "Text",
    "Thinking",
    "TokenizerError",
    "ToolCall",
    "UnsupportedError",
    "Verification",
    "Worker",
    "WorkerError",
    "__version__",
    "load",
    "pull",
    "verify",
]

_LAZY = {
    "LLM": "chaski.runner.llm",
    "Answer": "chaski.chat.answer",
    "Done": "chaski.chat.events",
    "Text": "chaski.chat.events",
    "Thinking": "chaski.chat.events",
    "ToolCall": "chaski.chat.events",
    "Worker": "chaski.runner.channels.worker.client",
    "Ranked": "chaski.chat.ranking",
    "load": "chaski.runner.loading.loader",
    "pull": "chaski.runner.loading.pulling",
    "Verification": "chaski.runner.receipts.verify",
    "verify": "chaski.runner.receipts.verify",
}

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'chaski' has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
