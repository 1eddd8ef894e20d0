"""`ReceiptSigner`: signs the receipts of a server's answers."""

from __future__ import annotations

from functools import cached_property

from msgspec.structs import replace

from chaski.chat.events import Done
from chaski.errors import MissingPackageError
from chaski.receipts.signing import server_key, shown_key, signed
from chaski.store.identity import Identity
from chaski.store.store import Store

__all__ = ["ReceiptSigner"]


class ReceiptSigner:
    """The key of a server. It is made when the first receipt or a client needs it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _key(self) -> Identity:
        return server_key(self._store)

    def public_key(self) -> str:
        """Return the public key in Base64. Raises StoreError, or MissingPackageError."""
        return shown_key(self._key)

    def done(self, done: Done) -> Done:
        """Return the end of an answer with a signed receipt, if it has a receipt.

        Without the package `cryptography` the receipt has no signature. Raises StoreError.
        """
        if done.receipt is None:
            return done
        try:
            return replace(done, receipt=signed(done.receipt, self._key))
        except MissingPackageError:
            return done
