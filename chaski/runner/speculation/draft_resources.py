"""Loading a draft model alongside another model: the same vocabulary, slots, threads and devices."""

from __future__ import annotations

from chaski.errors import UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.kvcache import CacheSize
from chaski.ml.backend import Backend, Memory, ProgressCallback
from chaski.model.metadata import blamed_on
from chaski.model.proposing import ProposingCost, token_bytes
from chaski.model.registry import build_model
from chaski.model.vocabulary import num_shared_tokens
from chaski.runner.loading.reservation import Reservation, kv_types
from chaski.runner.speculation.draft_model import DraftModel

__all__ = ["DraftResources"]


class DraftResources:
    """The file, backend and memory of a draft model, reserved when this is made and loaded by `load`."""

    def __init__(
        self,
        file: GGUFFile,
        target: GGUFFile,
        vocab_size: int,
        neighbour: Backend,
        size: CacheSize,
        kv_type: str | None,
    ) -> None:
        """`target` is the file of the model that it proposes for, with `vocab_size` tokens, on `neighbour`.

        Raises what `chaski.load` does, and OptionError for a model with other tokens.
        """
        self._size = size
        self._file = file
        network = build_model(self._file)
        if network.config.pooling is not None:
            raise UnsupportedError(f"{self._file.path.name} makes embeddings, not text: it cannot be a draft")
        self._num_shared = num_shared_tokens(target, vocab_size, self._file, network.config.vocab_size)
        self._cost = ProposingCost(token=token_bytes(self._file) / token_bytes(target))
        self._backend = neighbour.sibling()
        types = kv_types(kv_type, self._backend, self._file)
        with blamed_on(self._file):
            self._reserved = Reservation(network, self._file, self._backend, size, types)
        self.num_bytes = self._reserved.needs.total

    def load(self, progress: ProgressCallback) -> DraftModel:
        """Read the weights, and return the model that proposes."""
        program, cache = self._reserved.program, self._reserved.cache
        self._backend.load(progress)
        return DraftModel(program, cache, self._size.sequences, self._num_shared, self._cost)

    def memory(self) -> Memory:
        """The bytes that it holds on each device."""
        return self._backend.memory()

    def wait_loaded(self) -> None:
        """Wait for what `load` has left for later."""
        self._backend.wait_loaded()

    def close(self) -> None:
        """Release its memory."""
        self._backend.close()
        self._file.close()
