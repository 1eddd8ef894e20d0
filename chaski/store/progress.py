"""`StoreProgress`: progress reports of long store operations, in the wording of Ollama's API."""

from __future__ import annotations

from msgspec import Struct

from chaski.names import Digest

__all__ = ["StoreProgress"]


class StoreProgress(Struct, frozen=True):
    """A step, or the progress of a blob: total and completed bytes."""

    status: str
    digest: Digest | None = None
    total: int | None = None
    completed: int | None = None

    def fields(self) -> dict[str, str | int]:
        """Return the fields of one line of a progress stream, without absent or zero fields."""
        values = {
            "status": self.status,
            "digest": str(self.digest) if self.digest else None,
            "total": self.total,
            "completed": self.completed,
        }
        return {key: value for key, value in values.items() if value}
