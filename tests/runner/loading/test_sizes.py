"""The size of a cache whose context is not set, with made-up figures of memory."""

from __future__ import annotations

import pytest

from chaski.kvcache import CacheSize
from chaski.ml.backend import ByDevice
from chaski.runner.loading.sizes import Sizing, usual_context

GB = 10**9
A_TOKEN = 131_072  # bytes of a token's keys and values, as of a model of 8B


def chosen(
    left: float,
    trained: int = 131_072,
    needed: int | None = None,
    parallels: tuple[int, ...] = (4, 2, 1),
    bytes_each: int = A_TOKEN,
    devices: tuple[str, ...] = ("cpu",),
) -> tuple[int, int]:
    """Return the sequences and the context where `left` GB are left on each device."""

    def cache_bytes(size: CacheSize) -> ByDevice:
        return dict.fromkeys(devices, size.sequences * size.capacity * bytes_each)

    sizing = Sizing.of(trained, needed, parallels, 512)
    room = dict.fromkeys(devices, int(left * GB))
    size = sizing.choose(cache_bytes, room, room)
    return size.sequences, size.capacity


@pytest.mark.parametrize(
    ("left", "size"),
    [
        (1000, (4, 131_072)),  # all that the model was made for
        (48, (4, 45_056)),  # half of the memory, in steps of 1,024 tokens
        (24, (2, 45_056)),  # an agent's prompts are worth more than more sequences
        (10, (1, 37_888)),
        (6, (1, 32_768)),  # one such context may take more than half
        (4, (1, 26_624)),
        (0.5, (1, 4_096)),  # does not fit, and loading says so
        (0, (1, 4_096)),
    ],
)
def test_memory_decides(left: float, size: tuple[int, int]) -> None:
    assert chosen(left) == size


def test_a_model_gets_no_more_than_it_was_made_for() -> None:
    assert chosen(1000, trained=2048) == (4, 2048)
    assert chosen(0, trained=2048) == (1, 2048)
    assert chosen(10**6, trained=10_000_000) == (4, 262_144)


def test_a_fixed_number_of_sequences_stays() -> None:
    assert chosen(10, parallels=(4,)) == (4, 16_384)
    assert chosen(1, parallels=(8,)) == (8, 4_096)


def test_many_sequences_are_preferred_to_longer_contexts() -> None:
    many = (16, 8, 4, 2, 1)
    assert chosen(10, parallels=many) == (16, 4096)
    assert chosen(40, parallels=many) == (16, 16_384)
    assert chosen(5, parallels=many) == (8, 4096)
    assert chosen(10, parallels=many, needed=20_000) == (2, 32_768)


def test_a_request_that_needs_more_gets_room_to_grow() -> None:
    assert chosen(10, needed=50_000) == (1, 66_560)  # 7/8 of the memory hold no more
    assert chosen(14, needed=40_000) == (1, 53_248)
    assert chosen(11, needed=42_000) == (1, 72_704)
    assert chosen(1, needed=50_000) == (1, 50_000)  # does not fit
    assert chosen(1000, needed=300_000) == (4, 131_072)
    assert chosen(10**6, needed=300_000, trained=10**6) == (4, 300_000)


def test_the_smallest_device_decides() -> None:
    def cache_bytes(size: CacheSize) -> ByDevice:
        return {"cuda:0": size.capacity * A_TOKEN, "cpu": size.capacity}

    room = {"cuda:0": 4 * GB, "cpu": 100 * GB}
    size = Sizing.of(131_072, None, (1,), 512).choose(cache_bytes, room, room)
    assert size.capacity == 26_624
    nowhere = Sizing.of(131_072, None, (1,), 512).choose(cache_bytes, {"cpu": 100 * GB}, room)
    assert nowhere.capacity == 4096


def test_windows_take_no_more_for_longer_contexts() -> None:
    def cache_bytes(size: CacheSize) -> ByDevice:
        return {"cpu": size.sequences * min(size.capacity, 1024) * A_TOKEN}

    room = {"cpu": 2 * GB}
    size = Sizing.of(131_072, None, (4, 2, 1), 512).choose(cache_bytes, room, room)
    assert (size.sequences, size.capacity) == (4, 131_072)


@pytest.mark.parametrize(
    ("left", "available", "size"),
    [
        (90, 100, (2, 32_768)),  # an eighth of 100 GB has room for two contexts, and none is longer
        (9, 40, (1, 32_768)),
        (9, 24, (1, 26_624)),  # an eighth of the memory, beside the shortest context
        (2, 24, (1, 13_312)),  # 7/8 of what is left
        (0, 24, (1, 4_096)),  # does not fit
    ],
)
def test_a_context_takes_little_from_weights_that_have_no_room(
    left: float, available: float, size: tuple[int, int]
) -> None:
    found = (
        Sizing.of(131_072, None, (4, 2, 1), 512)
        .scarce()
        .choose(
            lambda size: {"cpu": size.sequences * size.capacity * A_TOKEN},
            {"cpu": int(left * GB)},
            {"cpu": int(available * GB)},
        )
    )
    assert (found.sequences, found.capacity) == size


def test_scarce_memory_is_the_reason_for_a_usual_context() -> None:
    scarce = Sizing.of(131_072, None, (1,), 512).scarce()
    reason = scarce.reason(CacheSize(1, 32_768, 512), 131_072)
    assert reason == "more would take memory from the weights; the model's own is 131,072"
    reason = scarce.reason(CacheSize(1, 8_192, 512), 131_072)
    assert reason == "what the memory allows; the model's own is 131,072"


def test_smaller_sizes_are_tried_down_to_the_smallest() -> None:
    sizing: Sizing | None = Sizing.of(16_384, None, (4, 2, 1), 512)
    tried = []
    while sizing is not None:
        size = sizing.choose(lambda size: {}, {}, {})
        tried.append((size.sequences, size.capacity))
        sizing = sizing.below(size)
    assert tried == [(4, 16_384), (4, 8192), (4, 4096), (2, 4096), (1, 4096)]


def test_reasons() -> None:
    sizing = Sizing.of(131_072, None, (4, 2, 1), 512)
    assert sizing.reason(CacheSize(4, 131_072, 512), 131_072) == "the model's own"
    shorter = sizing.reason(CacheSize(2, 40_960, 512), 131_072)
    assert shorter == "what the memory allows; the model's own is 131,072"
    longest = sizing.reason(CacheSize(2, 262_144, 512), 10**6)
    assert longest == "the longest that is chosen; the model's own is 1,000,000"


def test_the_usual_context_where_memory_does_not_decide() -> None:
    assert usual_context(512) == 512
    assert usual_context(8192) == 4096
    assert usual_context(8192, 4000) == 4096
    assert usual_context(8192, 4097) == 8192
    assert usual_context(100_000, 5000) == 10_000
