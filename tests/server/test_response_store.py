"""Stored responses: by owner and id, found again with their items, and dropped in order beyond the limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chaski.errors import ResponseNotFoundError
from chaski.server.network.jsons import dump
from chaski.server.response_store import ResponseStore, StoredResponse


def response(
    name: str, text: str = "", items: Sequence[str] = (), images: Sequence[bytes] = ()
) -> StoredResponse:
    output = [{"id": item, "text": f"{name}'s {item}"} for item in items]
    turn = {"role": "user", "content": text} | ({"images": images} if images else {})
    return StoredResponse({"id": name, "output": output}, [turn, turn], [{"id": "input", "content": text}])


def size(kept: StoredResponse) -> int:
    """Return its bytes, without those of images."""
    turns = [{name: turn[name] for name in turn if name != "images"} for turn in kept.turns]
    return len(dump(kept.fields)) + len(dump(kept.input)) + sum(len(dump(turn)) for turn in turns)


def found(store: ResponseStore, *names: str, owner: str = "me") -> str:
    """Return the names that are still there, without using the responses."""
    return "".join(name for name in names if (owner, name) in store._found)


def test_an_id_alone_finds_nothing() -> None:
    store = ResponseStore()
    mine, yours = response("a", "mine", items="x"), response("a", "yours", items="x")
    store.add("me", mine)
    for missing in (("you", "a"), ("", "a"), ("me", "b"), ("a", "me")):
        with pytest.raises(
            ResponseNotFoundError, match=rf"^response '{missing[1]}' not found: .*send the whole"
        ):
            store.get(*missing)
        with pytest.raises(ResponseNotFoundError):
            store.remove(*missing)
    with pytest.raises(ResponseNotFoundError, match=r"^item 'x' not found: .*send the item itself instead$"):
        store.find_item("you", "x")
    store.add("you", yours)
    assert store.get("me", "a") is mine
    assert store.get("you", "a") is yours
    store.remove("you", "a")
    assert store.get("me", "a") is mine
    assert store.find_item("me", "x") == {"id": "x", "text": "a's x"}
    with pytest.raises(ResponseNotFoundError):
        store.find_item("you", "x")


def test_items_go_with_their_response() -> None:
    store = ResponseStore(max_count=1)
    for name in "ab":
        store.add("me", response(name, items=(f"{name}1", f"{name}2")))
    assert store.find_item("me", "b2") == {"id": "b2", "text": "b's b2"}
    for item in ("a1", "a2", "b3"):
        with pytest.raises(ResponseNotFoundError, match=item):
            store.find_item("me", item)
    store.remove("me", "b")
    with pytest.raises(ResponseNotFoundError):
        store.find_item("me", "b1")
    assert not store._items


def test_two_responses_may_have_the_same_item() -> None:
    store = ResponseStore()
    for name in "ab":
        store.add("me", response(name, items="x"))
    store.remove("me", "a")
    store.remove("me", "b")


def test_the_least_recently_used_is_dropped_first() -> None:
    store = ResponseStore(max_count=3)
    for name in "abc":
        store.add("me", response(name))
    assert found(store, *"abc") == "abc"
    store.get("me", "a")
    store.add("you", response("d"))
    assert found(store, *"abc") == "ac"
    assert found(store, "d", owner="you") == "d"
    store.add("me", response("e"))
    assert found(store, *"ace") == "ae"


@pytest.mark.parametrize("images", [(), (b"x" * 500,), (b"x" * 200, b"y" * 300)])
def test_a_response_takes_the_bytes_of_its_texts_and_images(images: Sequence[bytes]) -> None:
    kept = response("a", "some text", items="xy", images=images)
    whole = size(kept) + 2 * sum(map(len, images))
    for room, stays in ((whole, "a"), (whole - 1, "")):
        store = ResponseStore(max_bytes=room)
        store.add("me", kept)
        assert found(store, "a") == stays


def test_what_is_gone_takes_no_room() -> None:
    one = response("a", "x" * 400)
    store = ResponseStore(max_bytes=2 * size(one))
    for _ in range(5):
        store.add("me", one)
        store.remove("me", "a")
    for name in "bc":
        store.add("me", response(name, "x" * 400))
    assert found(store, *"bc") == "bc"
    store.add("me", response("d", "x" * 400))
    assert found(store, *"bcd") == "cd"


def test_usual_limits() -> None:
    """64 MiB and a thousand responses."""
    store = ResponseStore()
    for number in range(1001):
        store.add("me", StoredResponse({"id": str(number)}, []))
    assert found(store, "0", "1", "1000") == "11000"
    assert len(store._found) == 1000
    large = ResponseStore()
    for name in "abc":
        large.add("me", StoredResponse({"id": name}, [{"images": [bytes(32 << 20)]}]))
    assert found(large, *"abc") == "c"
