"""The tree of the prefix cache: finding, pinning and evicting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from chaski.runner.prefix import naming
from chaski.runner.prefix import tree as tree_module
from chaski.runner.prefix.block_files import FiledBlock
from chaski.runner.prefix.blocks import Block, KnownBlock, Part
from chaski.runner.prefix.tree import LONGEST, PrefixTree


class Clock:
    """A time that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def words(text: str) -> list[bytes]:
    return [word.encode() for word in text]


def block(name: str, before: str = "root", size: int = 10) -> Block:
    part = Part(0, 1, np.zeros(size, np.uint8))
    return Block(name.encode(), before.encode(), 0, (ord(name),), ((part,),))


def held(tree: PrefixTree, wanted: str) -> str:
    """Return the names in memory."""
    return "".join(name for name in wanted if tree.in_memory(name.encode()) is not None)


def filled(text: str, clock: Clock) -> PrefixTree:
    """Return a tree with blocks of ten bytes, each after the one before it."""
    tree = PrefixTree(10 * len(text), clock)
    for before, name in zip("/" + text, text, strict=False):
        tree.insert(block(name, before))
    return tree


def test_what_was_not_used_for_the_longest_time_goes_first() -> None:
    tree = PrefixTree(30)
    for name in "abc":
        tree.insert(block(name))
    tree.touch([b"a"])
    tree.insert(block("d"))
    assert held(tree, "abcd") == "acd"
    assert tree.num_bytes == 30


def test_a_block_outlives_those_after_it() -> None:
    tree = PrefixTree(30)
    tree.insert(block("a"))
    tree.insert(block("b", "a"))
    tree.touch([b"a"])
    tree.insert(block("c", "b"))
    tree.touch([b"b", b"a"])
    tree.insert(block("x"))
    assert held(tree, "abcx") == "abx"
    tree.insert(block("y"))
    assert held(tree, "abcxy") == "axy"


def test_children_are_the_blocks_directly_after_a_name() -> None:
    tree = PrefixTree(100)
    tree.insert(block("b", "a"))
    tree.insert(block("c", "a"))
    assert [each.name for each in tree.children(b"a")] == [b"c", b"b"], "the newest first"
    tree.drop(b"b")
    assert [each.name for each in tree.children(b"a")] == [b"c"]
    tree.clear()
    assert not tree.children(b"a")
    assert tree.num_bytes == tree.use().num_blocks == 0


def test_a_block_that_is_too_large_pushes_nothing_out() -> None:
    tree = PrefixTree(30)
    tree.insert(block("a"))
    tree.insert(block("b", size=31))
    assert held(tree, "ab") == "a"


def test_a_block_takes_the_place_of_those_that_begin_it() -> None:
    tree = PrefixTree(1000)

    def of(*tokens: int, state: bool = False) -> Block:
        parts = [Part(0, len(tokens), np.zeros(16, np.uint8))]
        if state:
            parts.append(Part(len(tokens), len(tokens), np.zeros(16, np.uint8)))
        return Block(bytes(tokens), b"root", 0, tokens, (tuple(parts),))

    for each in (of(1, 2), of(1, 3), of(1, 2, 3), of(1, state=True), of(1, 2, 3, 4)):
        tree.insert(each)
    assert sorted(tree.names()) == [bytes((1,)), bytes((1, 2, 3, 4)), bytes((1, 3))], "a state is kept"


def test_a_block_is_known_until_neither_memory_nor_a_file_has_it() -> None:
    tree = PrefixTree(100)
    tree.insert(block("a"))
    tree.insert_file(FiledBlock.of(block("a")))
    tree.insert_file(FiledBlock.of(block("b")))
    assert [isinstance(each, Block) for each in tree.children(b"root")] == [True, False]
    tree.drop(b"a")
    assert [each.name for each in tree.children(b"root")] == [b"a", b"b"]
    assert isinstance(tree.get(b"a"), FiledBlock)
    assert tree.drop_file(b"a")
    assert not tree.drop_file(b"a")
    assert [each.name for each in tree.files()] == tree.names() == [b"b"]
    tree.clear()
    assert tree.names() == [b"b"], "files are not in memory"


def test_of_many_files_a_few_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_module, "_MOST_COMPARED", 2)
    tree = PrefixTree(100)
    for name in "abcd":
        tree.insert_file(FiledBlock.of(block(name)))
    tree.insert(block("a"))
    assert [each.name for each in tree.children(b"root")] == [b"a", b"c", b"d"]


@pytest.mark.parametrize("in_files", [False, True])
def test_the_longest_path_of_a_prompt(monkeypatch: pytest.MonkeyPatch, in_files: bool) -> None:
    monkeypatch.setattr(naming, "BLOCK", 4)
    tree, tokens = PrefixTree(1000), {}

    def insert(before: bytes, begin: int, *own: int) -> bytes:
        part = Part(begin, begin + len(own), np.zeros(10, np.uint8))
        made = Block(naming.block_name(before, own), before, begin, own, ((part,),))
        tokens[made.name] = own
        if in_files:
            tree.insert_file(FiledBlock.of(made))
        else:
            tree.insert(made)
        return made.name

    def tokens_of(block: KnownBlock) -> Sequence[int]:
        return tokens[block.name]

    def found(*prompt: int, first: bytes = b"mine") -> tuple[list[int], int]:
        path, length = tree.lookup(first, prompt, tokens_of)
        return [each.begin for each in path], length

    second = insert(insert(b"mine", 0, 1, 2, 3, 4), 4, 5, 6, 7, 8)
    insert(second, 8, 9, 10)
    insert(second, 8, 9, 11, 12, 13)
    assert found(1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 0) == ([0, 4, 8], 11)
    assert found(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 99) == ([0, 4, 8], 10)
    assert found(1, 2, 3, 4, 5, 6, 7, 8) == ([0, 4], 8)
    assert found(1, 2, 3, 4, 5, 6, 0, 0, 9) == ([0, 4], 6)
    assert found(1, 2) == ([0], 2)
    assert found(7, 7, 7, 7, 7) == ([], 0)
    assert found(1, 2, 3, 4, first=b"theirs") == ([], 0)


def test_a_pin_lasts_from_the_last_use() -> None:
    clock = Clock()
    tree = filled("ab", clock)
    tree.pin(words("ab"), 300)
    clock.now += 299
    assert tree.pinned(100) == {b"a", b"b"}
    tree.renew_pins(words("a"))
    clock.now += 299
    assert tree.pinned(100) == {b"a"}
    assert (tree.pinned_seconds(b"a"), tree.pinned_seconds(b"b"), tree.pinned_seconds(b"c")) == (300, 0, 0)
    clock.now += 1
    assert tree.pinned(100) == set()
    tree.renew_pins(words("a"))
    assert tree.pinned_seconds(b"a") == 0


def test_a_longer_pin_is_not_made_shorter() -> None:
    clock = Clock()
    tree = filled("ab", clock)
    tree.pin(words("a"), 3600)
    clock.now += 100
    tree.pin(words("ab"), 300)
    assert (tree.pinned_seconds(b"a"), tree.pinned_seconds(b"b")) == (3600, 300)
    clock.now += 3599
    assert tree.pinned(100) == {b"a"}
    tree.pin(words("c"), 10 * LONGEST)
    assert tree.pinned_seconds(b"c") == LONGEST


def test_the_oldest_pins_go_and_a_chain_from_its_end() -> None:
    tree = filled("oabc", Clock())
    tree.pin(words("o"), 3600)
    tree.pin(words("abc"), 300)
    assert tree.pinned(30) == {b"a", b"b", b"c"}
    assert tree.pinned(25) == {b"a", b"b"}
    assert tree.pinned(40) == {b"a", b"b", b"c", b"o"}


def test_a_clock_that_is_set_back_holds_nothing_for_ever() -> None:
    clock = Clock()
    tree = filled("ab", clock)
    clock.now = 10.0**9
    tree.pin(words("a"), 300)
    clock.now = 1000.0
    assert tree.pinned(100) == {b"a"}
    clock.now += 300
    assert tree.pinned(100) == set()
    clock.now = 10.0**9 + 1
    assert tree.pinned(100) == set()


def test_names_are_bounded() -> None:
    tree = filled("ab", Clock())
    for number in range(5000):
        tree.pin([number.to_bytes(4)], 300)
    assert tree.pinned_seconds((0).to_bytes(4)) == 0
    assert tree.pinned_seconds((4999).to_bytes(4)) == 300


def test_memory_keeps_what_is_held_and_half_of_it_at_most() -> None:
    clock = Clock()
    tree = PrefixTree(60, clock)
    tree.pin(words("ab"), 300)
    tree.insert(block("a"))
    tree.insert(block("b", "a"))
    for word in "cdefgh":
        tree.insert(block(word))
    assert held(tree, "abcdefgh") == "abefgh"
    tree.pin(words("efg"), 300)  # more than half with them, so the older ones go
    tree.insert(block("i"))
    tree.insert(block("j"))
    assert held(tree, "abefghij") == "efghij"
    clock.now += 301
    for word in "klmnop":
        tree.insert(block(word))
    assert held(tree, "efghijklmnop") == "klmnop"
    assert tree.num_bytes == 60
