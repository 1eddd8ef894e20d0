"""Batches on simulated nodes: times that can be computed by hand, and the bytes of real cuts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.part_of_model import CutModel
from benchmarks.simulated.shards import Batch, Link, Node, Work, simulate, work_of
from chaski.formats.quant import QuantType
from chaski.ml.graph import Dim, DType, Graph, Weight
from chaski.ml.sharded.pieces import Gather, Piece, Send
from tests.ml.sharded.test_traffic import bytes_of_a_token
from tests.tiny_llama import HIDDEN, write_tiny_llama

ARCHITECTURES = Path(__file__).parents[1] / "data" / "architectures"
WIDTH, NUM_BYTES = 250, 1000
SIZES = {"tokens": 1, "outputs": 1}


SECONDS = Node(piece=0.0, bandwidth=1.0, rate=1e18)
"""A node that takes one second for each byte of a piece's matrices."""


def batch(*seconds: Sequence[int], node: Node = SECONDS, sizes: Mapping[str, int] = SIZES) -> Batch:
    """Return a batch in which the members' pieces take these seconds."""
    return Batch([node] * len(seconds), [[Work(each, 0) for each in some] for some in seconds], sizes)


def exchanging(members: int) -> list[list[Piece]]:
    """Return pieces in which each member computes a value for all others, and then reads all values."""
    found = []
    for own in range(members):
        others = [member for member in range(members) if member != own]
        first, second = Piece(), Piece()
        value = first.graph.input("tokens", (Dim("tokens", 8), WIDTH), DType.F32)
        first.graph.output("value 0", value)
        first.sends.append(Send("value 0", 0, "tokens", others))
        second.gathers.append(Gather("whole 0", "value 0", 0, "tokens", WIDTH, range(members)))
        found.append([first, second])
    return found


def test_one_member() -> None:
    pieces = [[Piece(), Piece()]]
    found = simulate(pieces, [batch([2, 3])], Link(1.0, 1.0, 1.0, 1.0), head=0.5)
    assert (found.seconds, found.num_bytes) == (5.5, 0)


@pytest.mark.parametrize(("members", "others", "waits"), [(2, 1, 2), (4, 3, 3), (8, 7, 3)])
def test_all_send_to_all(members: int, others: int, waits: int) -> None:
    """Each port carries the values of all others in one direction, whatever the other direction carries."""
    batches = [batch(*[[1, 10]] * members)]
    free = simulate(exchanging(members), batches, Link(0.0, 1000.0))
    assert free.seconds == pytest.approx(1 + others * 1.0 + 10)
    assert free.num_bytes == members * others * NUM_BYTES
    assert free.computing == [11.0] * members
    late = simulate(exchanging(members), batches, Link(0.25, 1000.0))
    # Members other than the first begin later, by the time of the message to them, and reply later. Of two
    # members, the second has all its values before the first.
    assert late.seconds == pytest.approx(free.seconds + waits * 0.25)


def test_a_value_takes_time_at_both_ends() -> None:
    """A sender sends one value after the other, and a reader receives one after the other."""
    link = Link(0.0, 1e15, message=0.2, byte=0.001)
    found = simulate(exchanging(3), [batch(*[[1, 10]] * 3)], link)
    assert found.seconds == pytest.approx(1 + 2 * 0.6 + 2 * 0.6 + 10)


@pytest.mark.parametrize(
    ("ahead", "cached", "saved"),
    [
        (100, 1e18, 4),  # bytes that it can read while it waits
        (3, 1e18, 3),  # the size of its caches
        (100, 2.0, 2),  # using bytes that were read ahead takes time, too
        (0, 1e18, 0),
    ],
)
def test_matrices_are_read_while_values_are_awaited(ahead: int, cached: float, saved: float) -> None:
    """The first member finishes its first piece after a second, and the other's value arrives after 5."""
    node = replace(SECONDS, ahead=ahead, cached=cached)
    found = simulate(exchanging(2), [batch([1, 10], [4, 1], node=node)], Link(0.0, 1000.0))
    assert found.seconds == pytest.approx(5 + 10 - saved)


def test_what_was_read_ahead_stays_for_the_pieces_behind_the_next() -> None:
    """Four bytes are read while a value is awaited: two of the next piece, and two of the last piece."""
    first, second = exchanging(2)
    pieces = [[*first, Piece()], [*second, Piece()]]
    node = replace(SECONDS, ahead=100, cached=1e18)
    found = simulate(pieces, [batch([1, 2, 10], [4, 1, 1], node=node)], Link(0.0, 1000.0))
    assert found.seconds == pytest.approx(5 + 2 + 10 - 4)


def test_parts_of_many_rows_travel_while_others_are_computed() -> None:
    """Each 64 of 256 rows take a second in each of two pieces, and a second on the way between them."""
    rows, matrix = Dim("tokens", 512), Weight((WIDTH, WIDTH))
    pieces = []
    for own in range(2):
        first, second = Piece(), Piece()
        value = first.graph.input("tokens", (rows, WIDTH), DType.F32)
        made = first.graph.record("linear", (value, matrix), (rows, WIDTH))
        first.graph.output("value 0", made)
        first.sends.append(Send("value 0", 0, "tokens", [1 - own]))
        second.gathers.append(Gather("whole 0", "value 0", 0, "tokens", WIDTH, range(2)))
        whole = second.graph.input("whole 0", (rows, WIDTH), DType.F32)
        second.graph.output("result", second.graph.record("linear", (whole, matrix), (rows, WIDTH)))
        pieces.append([first, second])
    sizes = {"tokens": 256, "outputs": 1}
    found = simulate(pieces, [batch([4, 4], [4, 4], sizes=sizes)], Link(0.0, 64.0 * NUM_BYTES))
    assert found.seconds == pytest.approx(4 + 4)
    late = simulate(pieces, [batch([4, 4], [4, 4], sizes=sizes)], Link(0.0, 16.0 * NUM_BYTES))
    # The link delivers a part of the rows every four seconds.
    assert late.seconds == pytest.approx(1 + 4 * 4 + 1)


def test_a_slow_member_is_waited_for() -> None:
    found = simulate(exchanging(2), [batch([1, 1], [5, 1])], Link(0.0, 1000.0))
    assert found.seconds == pytest.approx(5 + 1 + 1)


def test_batches_follow_each_other_by_layers(tmp_path: Path) -> None:
    """The second member computes a batch while the first one computes the next."""
    pieces = CutModel(write_tiny_llama(tmp_path / "tiny.gguf"), "layers", 2).pieces
    assert [len(some) for some in pieces] == [1, 1]
    first, last = (batch([1], [1], sizes={"tokens": 8, "outputs": count}) for count in (0, 1))
    found = simulate(pieces, [first, first, first, last], Link(0.25, 1e15))
    assert found.seconds == pytest.approx(1 + 4 + 2 * 0.25)
    assert found.computing == [4.0, 4.0]


def test_the_first_member_does_not_wait_for_the_outputs() -> None:
    """The token table also computes the outputs: the last member has it, too."""
    cut = CutModel(ARCHITECTURES / "gemma3.gguf", "layers", 2)
    assert [len(some) for some in cut.pieces] == [1, 1]
    assert [weight.name for weight in cut.weights].count("token_embd.weight") == 2


def test_work_of_a_piece() -> None:
    piece, matrix = Piece(graph=Graph()), Weight((100, 50))
    x = piece.graph.input("x", (Dim("tokens", 8), 50), DType.F32)
    piece.graph.record("linear", (x, matrix), (Dim("tokens", 8), 100))
    work = work_of(piece, {matrix: 3000}, {"tokens": 4})
    assert work == Work(3000, 4 * 100 * 50)
    assert Node(1.0, 1000.0, 1e9).seconds(work) == pytest.approx(4.0)
    assert Node(1.0, 1e9, 20_000.0).seconds(work) == pytest.approx(2.0)


@pytest.mark.parametrize("matrices", [QuantType.F32, QuantType.Q8_0])
@pytest.mark.parametrize("split", ["layers", "rows"])
def test_bytes_of_a_real_cut(tmp_path: Path, split: str, matrices: QuantType) -> None:
    """The bytes match the formula, which the members' own counts follow."""
    pieces = CutModel(write_tiny_llama(tmp_path / "tiny.gguf", matrices=matrices), split, 2).pieces
    found = simulate(pieces, [batch(*([1] * len(some) for some in pieces))], Link(2e-4, 125e6))
    # A row of the embedding counts for both members, though only one has it.
    embedding = 4 * HIDDEN if split == "rows" else 0
    assert found.num_bytes == bytes_of_a_token(split, 2, matrices) + embedding
