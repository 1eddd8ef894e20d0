"""The choice of experts in slots, their places, and what is counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from chaski.errors import ModelError
from chaski.ml.backend import LayerExperts
from chaski.ml.sharded import expert_tiers
from chaski.ml.sharded.expert_tiers import ExpertTiers, TieredLayer

EXPERTS, SLOTS = 6, 2


@pytest.fixture
def layer() -> TieredLayer:
    tensor: Any = type("Tensor", (), {"shape": (EXPERTS, 8, 32)})
    return TieredLayer(3, 0, 1, EXPERTS, SLOTS, [(0, tensor)], np.arange(SLOTS, dtype=np.int32))


@pytest.fixture
def tiers(layer: TieredLayer) -> ExpertTiers:
    tiers = ExpertTiers()
    tiers.add(layer, [])
    return tiers


def choose(tiers: ExpertTiers, layer: TieredLayer, *experts: int, tokens: int = 64) -> None:
    routes = np.zeros((tokens, 2, len(experts)), np.float32)
    routes[:, 0] = experts
    tiers.note({layer: routes}, tiers.inputs)


def places(tiers: ExpertTiers, layer: TieredLayer) -> list[list[int]]:
    return [tiers.inputs[layer.input_name(member)].tolist() for member in (layer.host, layer.gpu)]


def test_every_expert_has_one_place(tiers: ExpertTiers, layer: TieredLayer) -> None:
    assert places(tiers, layer) == [[6, 6, 2, 3, 4, 5], [0, 1, 2, 2, 2, 2]]
    choose(tiers, layer, 4, 1)
    (move,) = tiers.due()
    assert (move.slot, move.expert) == (0, 4)
    with tiers.moving([move]):
        assert places(tiers, layer) == [[0, 6, 2, 3, 4, 5], [2, 1, 2, 2, 2, 2]]
    assert places(tiers, layer) == [[0, 6, 2, 3, 6, 5], [2, 1, 2, 2, 0, 2]]
    assert not tiers.due()  # nothing was chosen since


def test_a_move_that_does_not_pay(
    tiers: ExpertTiers, layer: TieredLayer, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(tiers, layer, 4, tokens=20)
    assert not tiers.due()
    monkeypatch.setattr(expert_tiers, "_WORTH", 19.5)
    choose(tiers, layer, 5, tokens=16)
    assert [move.expert for move in tiers.due()] == []  # 4 counts less after 16 later tokens
    choose(tiers, layer, 4, tokens=16)
    assert [move.expert for move in tiers.due()] == [4]


def test_a_move_that_fails(tiers: ExpertTiers, layer: TieredLayer) -> None:
    choose(tiers, layer, 4, 5)
    moves = tiers.due()
    before = places(tiers, layer)
    with pytest.raises(ModelError), tiers.moving(moves):
        raise ModelError("a file")
    assert places(tiers, layer) == before
    with pytest.raises(KeyboardInterrupt), tiers.moving(moves):
        raise KeyboardInterrupt
    assert places(tiers, layer) == [[0, 1, 2, 3, 4, 5], [2] * 6]  # nobody knows what slots have
    choose(tiers, layer, 4, 5)
    assert sorted(move.expert for move in tiers.due()) == [4, 5]


def test_counts(tiers: ExpertTiers, layer: TieredLayer) -> None:
    choose(tiers, layer, 0, 1, 5)
    choose(tiers, layer, 2, tokens=1)
    assert tiers.counts(()) == (LayerExperts(3, 4, 2, 0, 6, 6, gpu_hits=2, gpu_slots=2),)
    in_store = LayerExperts(3, 2, 1, 500, 4, 6)
    assert tiers.counts([in_store]) == (LayerExperts(3, 4, 1, 500, 4, 6, gpu_hits=2, gpu_slots=2),)


def test_a_choice_that_is_no_number(tiers: ExpertTiers, layer: TieredLayer) -> None:
    routes = np.full((64, 2, 1), np.nan, np.float32)
    tiers.note({layer: routes}, tiers.inputs)
    assert tiers.counts(())[0].gpu_hits == 1  # of expert 0, as in kernels
