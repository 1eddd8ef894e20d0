"""The line on experts that do not all fit into memory."""

from __future__ import annotations

from chaski.cli.expert_line import experts_line


def layer(number: int, requests: int, hits: int) -> dict[str, int]:
    held = {"bytes_read": 1_500_000, "slots": 6, "matrices": 24}
    return {"layer": number, "requests": requests, "hits": hits} | held


def test_the_layer_that_reads_most_is_named() -> None:
    assert experts_line([layer(0, 100, 80), layer(1, 100, 40)]) == (
        "60% of requests in memory (layer 1: 40%), room for 25%, 3 MB read"
    )


def test_layers_that_are_alike() -> None:
    found = experts_line([layer(0, 100, 60), layer(1, 100, 61)])
    assert found.startswith("60% of requests in memory, room for 25%, ")


def test_a_gpu_with_slots() -> None:
    layers = [layer(0, 100, 60) | {"gpu_hits": 30, "gpu_slots": 3}, layer(1, 100, 50) | {"gpu_hits": 50}]
    layers[1]["gpu_slots"] = 3
    assert experts_line(layers) == (
        "95% of requests in memory or on a GPU (layer 0: 90%), 40% on a GPU with room for 12%, "
        "room for 25% in memory, 3 MB read"
    )


def test_a_model_that_has_not_answered() -> None:
    assert experts_line([layer(0, 0, 0)]) == "room for 25%, none requested yet"
