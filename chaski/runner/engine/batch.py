"""A prepared batch: its sequences, and the arrays that the plan reads."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from collections.abc import Sequence as Items
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from chaski.chat.image_rows import ImageRun
from chaski.kvcache.batch import AttendedImage, Batch, BatchAdapters
from chaski.ml.plan import Input
from chaski.model.program import Program, Run
from chaski.runner.engine.images import EncodedImages
from chaski.runner.engine.sequence import Sequence

__all__ = ["PreparedBatch", "prepare_batch"]


class PreparedBatch(Struct, frozen=True):
    """A batch: the sequences with their numbers of tokens and outputs, and the inputs of the plan.

    `ends` are the lengths of the sequences after the batch. `images` are the rows of images in the batch, in
    token order. `num_top_logits` are the numbers of top logits for each sequence; they are set when the batch
    is launched. `mistaken` are sequences for which the batch contains a wrong token.
    """

    shares: Items[tuple[Sequence, int]]
    num_outputs: Items[int]
    ends: Items[int]
    images: Items[ImageRun]
    batch: Batch
    inputs: Mapping[str, npt.NDArray[Any]]
    num_top_logits: list[int] = field(default_factory=list)
    mistaken: list[Sequence] = field(default_factory=list)

    def fill(self, encoded: EncodedImages | None) -> list[list[int]]:
        """Write the tokens and the rows of images -> the known tokens of each share.

        Encodes images that have not been encoded yet.
        """
        tokens = [sequence.known(len(sequence.slot.tokens), count) for sequence, count in self.shares]
        counts = (count for _, count in self.shares)
        parts = ([*known, *[0] * (count - len(known))] for known, count in zip(tokens, counts, strict=True))
        every = list(chain.from_iterable(parts))
        if self.images:
            assert encoded is not None
            if self.batch.encoded is not None:
                self.batch.encoded[:] = np.concatenate([encoded.rows(run.image) for run in self.images])
            elif self.batch.rows is not None:
                encoded.fill(self.batch.rows, self.images)
            stand_in = self.images[0].image.token or 0
            every = [token if token >= 0 else stand_in for token in every]
        self.batch.tokens[:] = every
        return tokens

    def last_rows(self) -> Mapping[Sequence, int]:
        """Return the index of the last output of each sequence with outputs."""
        each = zip(self.shares, self.num_outputs, accumulate(self.num_outputs), strict=True)
        return {sequence: end - 1 for (sequence, _), count, end in each if count}

    def sequences_of(self, rows: Mapping[str, Items[int]]) -> set[Sequence]:
        """Return the sequences that have these rows of the dimensions `tokens` and `outputs`."""
        outputs = self.batch.outputs[list(rows.get("outputs", ()))].tolist()
        ends = list(accumulate(count for _, count in self.shares))
        return {self.shares[bisect_right(ends, place)][0] for place in (*rows.get("tokens", ()), *outputs)}

    def inputs_after(self, run: Run, last: Mapping[Sequence, int]) -> Mapping[str, Input]:
        """Return the inputs; tokens that are not known yet are taken from `run`.

        It is the run of the batch before, and `last` are the `last_rows` of that batch.
        """
        sizes = accumulate(count for _, count in self.shares)
        awaiting = [
            (size - 1, last[sequence])
            for (sequence, count), size in zip(self.shares, sizes, strict=True)
            if len(sequence.known(len(sequence.slot.tokens), count)) < count
        ]
        if not awaiting:
            return self.inputs
        places, rows = zip(*awaiting, strict=True)
        return {**self.inputs, "tokens": run.with_samples(self.batch.tokens, places, rows)}


def prepare_batch(
    shares: Items[tuple[Sequence, int]], program: Program, encoded: EncodedImages | None
) -> PreparedBatch:
    """Prepare a batch of the given tokens of sequences, and allocate cells for it in the cache.

    Lists are built before arrays, which is fastest for few tokens.
    """
    positions: list[int] = []
    sequences: list[int] = []
    outputs: list[int] = []
    ends: list[int] = []
    places: list[int] = []
    num_outputs: list[int] = []
    images: list[ImageRun] = []
    attended: list[AttendedImage] = []
    for sequence, count in shares:
        begin, offset = len(sequence.slot.tokens), len(positions) - len(sequence.slot.tokens)
        wanted = sequence.outputs(begin, count)
        outputs += [place + offset for place in wanted]
        num_outputs.append(len(wanted))
        positions += range(begin, begin + count)
        sequences += [sequence.slot.index] * count
        ends += range(begin + 1, begin + count + 1)
        for group in sequence.groups:
            if begin <= group.start < begin + count:
                first = group.start + offset
                ends[first : first + len(group)] = [group.stop] * len(group)
        if sequence.images:
            part = sequence.images_for(begin, count)
            images += part.runs
            places += [place + offset for place in part.places]
            attended += part.attended
    has_groups = any(sequence.groups for sequence, _ in shares)
    batch = Batch(
        np.zeros(len(positions), np.int32),
        np.array(positions, np.int32),
        np.array(sequences, np.int32),
        np.array(outputs, np.int32),
        ends=np.array(ends, np.int32) if has_groups else None,
        rows=_room(len(places), encoded) if places else None,
        places=np.array(places, np.int32) if places else None,
        attended=attended,
        types=_types(shares) if program.takes_types else None,
        encoded=_room(sum(image.num_rows for image in attended), encoded) if attended else None,
        coordinates=_coordinates(shares, program.num_coordinates) if program.has_coordinates else None,
        adapters=_adapters(shares) if any(sequence.adapters for sequence, _ in shares) else None,
    )
    lengths = [len(sequence.slot.tokens) + count for sequence, count in shares]
    return PreparedBatch(shares, num_outputs, lengths, images, batch, program.prepare(batch))


def _types(shares: Items[tuple[Sequence, int]]) -> npt.NDArray[np.int32]:
    """Return 1 for each token of a second text, and 0 for other tokens."""
    found = []
    for sequence, count in shares:
        begin, second = len(sequence.slot.tokens), sequence.second_text
        found += [second is not None and place >= second for place in range(begin, begin + count)]
    return np.array(found, np.int32)


def _coordinates(shares: Items[tuple[Sequence, int]], axes: int) -> npt.NDArray[np.int32]:
    return np.concatenate(
        [sequence.coordinates(len(sequence.slot.tokens), count, axes) for sequence, count in shares]
    )


def _adapters(shares: Items[tuple[Sequence, int]]) -> BatchAdapters:
    """Return the list of adapters of each token; sequences with the same adapters have separate lists."""
    lists: list[int] = []
    uses: list[tuple[int, int, int]] = []
    num_lists = 0
    for sequence, count in shares:
        if sequence.adapters is None:
            lists += [-1] * count
            continue
        lists += [num_lists] * count
        uses += [(num_lists, use.slot, use.scale_bits) for use in sequence.adapters.uses]
        num_lists += 1
    return BatchAdapters(np.array(lists, np.int32), np.array(uses, np.int32).reshape(-1, 3))


def _room(count: int, encoded: EncodedImages | None) -> npt.NDArray[np.float32]:
    assert encoded is not None, "a model that does not see gets no images"
    return np.zeros((count, encoded.row_size), np.float32)
