"""`StoreProgress`: the reports of a long operation on the store, in words that Ollama's clients know."""

from __future__ import annotations

from msgspec import Struct

from chaski.names import Digest

__all__ = ["StoreProgress"]


class StoreProgress(Struct, frozen=True):
    """A step, or how far a blob is: bytes in all and bytes done."""

    status: str
    digest: Digest | None = None
    total: int | None = None
    completed: int | None = None

    def fields(self) -> dict[str, str | int]:
        """The fields of a line of a progress stream, without those that are absent or zero."""
        values = {
            "status": self.status,
            "digest": str(self.digest) if self.digest else None,
            "total": self.total,
            "completed": self.completed,
        }
        return {key: value for key, value in values.items() if value}
