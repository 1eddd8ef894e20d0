"""Saving what an engine holds of a sequence to a file, and loading it again.

Blocks are copied out of cells between two batches, one at a time, and written while others compute. A state
that is loaded goes into the memory tier of the prefix cache, from where the next prompt takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from time import perf_counter

from chaski.errors import BusyError, ChaskiError, OptionError, StateError, UnsupportedError
from chaski.runner.engine.engine import Engine
from chaski.runner.engine.sequence import Sequence
from chaski.runner.generation.sequence_builder import SequenceBuilder
from chaski.runner.prefix import naming
from chaski.runner.prefix.blocks import Block
from chaski.runner.prefix.prefix_cache import length_to_keep
from chaski.runner.prefix.slots import Slot
from chaski.runner.prefix.tiers import PrefixTiers
from chaski.runner.states.files import StateHead, read_state, write_state
from chaski.runner.states.moved_blocks import BlocksHead, read_blocks, write_blocks
from chaski.runner.states.state_calls import (
    EraseSlot,
    KeepPrefixes,
    LoadState,
    SavedState,
    SaveSlot,
    SaveState,
    StateCall,
    TakePrefixes,
)

__all__ = ["answered_state"]


def answered_state(engine: Engine, prompts: SequenceBuilder, call: StateCall) -> SavedState:
    """Execute a call, and wait for it.

    Raises UnsupportedError for a model without a prefix cache, StateError where a state is not of this model
    or cannot be kept, FormatError for a damaged file, OptionError for a slot that does not exist or is empty,
    BusyError for erasing a slot in use, and what `prompts` raises.
    """
    engine.check_usable()
    if engine.tiers is None:
        raise UnsupportedError(
            "states are kept by the prefix cache, which is off for this model: CHASKI_PREFIX_CACHE and the "
            "option prompt_cache turn it on, for models that make text"
        )
    keeper = _Keeper(engine, engine.tiers)
    match call:
        case SaveState():
            sequence = prompts.prompt(prompts.prepare(call.call, prompts.read_images(call.call.images)))
            return keeper.save_prompt(sequence, Path(call.path))
        case SaveSlot():
            return keeper.save_slot(call)
        case LoadState():
            return keeper.load(Path(call.path), call.cache_salt)
        case EraseSlot():
            return keeper.erase(call.slot, call.cache_salt)
        case KeepPrefixes():
            return keeper.keep_all(Path(call.path))
        case TakePrefixes():
            return keeper.take_all(Path(call.path))


class _Keeper:
    def __init__(self, engine: Engine, tiers: PrefixTiers) -> None:
        self._engine = engine
        self._tiers = tiers

    def save_prompt(self, sequence: Sequence, path: Path) -> SavedState:
        """Compute a sequence, and save all of it."""
        self._engine.submit(sequence)
        try:
            self._engine.wait(sequence)
        except BaseException:
            sequence.cancel()
            raise
        ended = sequence.events[-1]
        if isinstance(ended, ChaskiError):
            raise ended
        length = len(sequence.tokens)
        first = self._tiers.first_name(sequence.cache_salt, sequence.adapter_key)
        return self._save(path, first, sequence.adapter_key, sequence.tokens[:length])

    def save_slot(self, call: SaveSlot) -> SavedState:
        """Save the tokens of a slot that any sequence would compute the same."""
        found: list[tuple[list[int], str]] = []

        def look() -> None:
            slot = self._slot(call.slot, call.cache_salt)
            found.append((slot.tokens[: length_to_keep(slot)], slot.adapter_key))

        self._engine.between_batches(look)
        ((tokens, adapter_key),) = found
        first = self._tiers.first_name(call.cache_salt, adapter_key)
        return self._save(Path(call.path), first, adapter_key, tokens, call.max_bytes)

    def load(self, path: Path, cache_salt: str) -> SavedState:
        """Take the blocks of a file into memory, all of them or none."""
        started = perf_counter()

        def check(head: StateHead) -> None:
            self._check(path, head, cache_salt)

        blocks, num_bytes = read_state(path, check, self._tiers.sizes, self._tiers.tree.max_bytes)
        self._engine.between_batches(lambda: self._tiers.take_in(blocks))
        return SavedState(self._tiers.restorable(blocks), num_bytes, perf_counter() - started)

    def keep_all(self, path: Path) -> SavedState:
        """Write all blocks in memory to a file, for another process of the model."""
        started = perf_counter()
        found: list[Block] = []
        self._engine.between_batches(lambda: found.extend(self._tiers.in_memory()))
        num_bytes = write_blocks(path, BlocksHead(self._tiers.origin, self._tiers.tree.pins()), found)
        return SavedState(sum(len(block.tokens) for block in found), num_bytes, perf_counter() - started)

    def take_all(self, path: Path) -> SavedState:
        """Take the blocks of such a file into memory; none where their numbers depend on anything else."""
        started = perf_counter()
        count, tree = 0, self._tiers.tree
        with read_blocks(path, self._tiers.sizes) as (head, blocks):
            if head.origin == self._tiers.origin:
                for name, seconds in head.pins:
                    tree.pin([name], seconds)
                for block in blocks:
                    self._engine.between_batches(partial(tree.insert, block))
                    count += len(block.tokens)
        return SavedState(count, path.stat().st_size, perf_counter() - started)

    def erase(self, number: int, cache_salt: str) -> SavedState:
        """Forget the tokens of a slot, and those of its blocks that no other sequence continues from."""
        started = perf_counter()
        erased: list[int] = []

        def erase() -> None:
            slot = self._slot(number, cache_salt)
            if not slot.is_free:
                raise BusyError(f"slot {number} is in use; erase it when its answer is complete")
            erased.append(len(slot.tokens))
            names = _names(slot.names[0], slot.tokens[: length_to_keep(slot)])
            self._engine.prefix_cache.forget([slot])
            self._tiers.drop_end(names[1:])

        self._engine.between_batches(erase)
        return SavedState(erased[0], 0, perf_counter() - started)

    def _slot(self, number: int, cache_salt: str) -> Slot:
        slots = self._engine.prefix_cache.slots
        if not 0 <= number < len(slots):
            raise OptionError(f"this model has no slot {number}; it has {len(slots)} slots, counted from 0")
        slot = slots[number]
        if not slot.tokens or slot.cache_salt != cache_salt:
            raise OptionError(f"slot {number} holds no tokens")
        return slot

    def _save(
        self, path: Path, first: bytes, adapter_key: str, tokens: list[int], max_bytes: int | None = None
    ) -> SavedState:
        started = perf_counter()
        head = StateHead(self._tiers.origin, first, adapter_key)
        written, num_bytes = write_state(path, head, self._blocks(first, tokens), max_bytes)
        return SavedState(self._tiers.restorable(written), num_bytes, perf_counter() - started)

    def _blocks(self, first: bytes, tokens: list[int]) -> Iterator[Block]:
        """Yield the blocks of a sequence, up to the first that is gone."""
        names = _names(first, tokens)
        for begin in range(0, len(tokens), naming.BLOCK):
            block = self._block(names, tokens, begin)
            if block is None:
                return
            yield block

    def _block(self, names: list[bytes], tokens: list[int], begin: int) -> Block | None:
        found: list[Future[Block | None] | Block | None] = []
        read = self._engine.prefix_cache.block
        self._engine.between_batches(lambda: found.append(read(names, tokens, begin)))
        (block,) = found
        return block.result() if isinstance(block, Future) else block

    def _check(self, path: Path, head: StateHead, cache_salt: str) -> None:
        """Raise StateError if a state belongs to another model or owner."""
        own = self._tiers.origin
        reasons = {
            "version": f"it was saved by chaski {head.origin.get('version', '?'):.40}",
            "rule": "it was saved by a version that rounds otherwise",
            "model": f"it is of another model, or of another file: {head.origin.get('name', '?'):.200}",
            "attention": "the form of attention (flash_attention) was another",
            "graph": "the types of keys and values (kv_type) were others, or the parts of the model",
        }
        for name, reason in reasons.items():
            if head.origin.get(name) != own.get(name):
                raise StateError(f"{path}: the state cannot be used: {reason}")
        if head.first != self._tiers.first_name(cache_salt, head.adapter_key):
            raise StateError(f"{path}: the state cannot be used: it belongs to another cache_salt or API key")


def _names(first: bytes, tokens: list[int]) -> list[bytes]:
    """Return the first name and those of all blocks of a sequence."""
    names = [first]
    for begin in range(0, len(tokens), naming.BLOCK):
        names.append(naming.block_name(names[-1], tokens[begin : begin + naming.BLOCK]))
    return names
