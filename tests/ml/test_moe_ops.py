"""Routing and the matrices of experts: kernels against the definition; ties go to the lower number."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from chaski.formats.quant import QuantType
from chaski.ml import CPUOptions, open_backend, ops
from chaski.ml.graph import Dim, DType, Graph, Tensor, Weight
from chaski.ml.moe_ops import (
    ONE_GROUP,
    ExpertPlaces,
    Gating,
    Groups,
    combine,
    dispatch,
    expert_linear,
    group_by_expert,
    join_experts,
    router,
    scale_by_expert,
    scale_experts,
)
from tests.backends import FORMS
from tests.native.matmul_rule import random_weights
from tests.rewriting import bytes_as

F32 = npt.NDArray[np.float32]

IDS, EXPERTS, SIZE, HIDDEN = 50, 21, 64, 40
PLACES = [("reference", "auto"), *FORMS]


class Mixture:
    """A graph with every operation over embedded ids, on one backend."""

    def __init__(
        self,
        folder: Path,
        place: tuple[str, str],
        gating: Gating,
        count: int = 3,
        type: QuantType = QuantType.F32,
        *,
        limit: Groups = ONE_GROUP,
        normalized: bool = False,
        weighs_inputs: bool = False,
        shows_rows: bool = False,
        elsewhere: Sequence[int] = (),
    ) -> None:
        """`elsewhere`: experts in stacks of their own, in this order."""
        self._elsewhere = list(elsewhere)
        self.backend = open_backend(place[0], CPUOptions(threads=2, isa=place[1]))
        w = self._weights(folder, type)
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", 200),), DType.I32)
        routes = router(
            ops.embedding(ids, w["logits"]),
            count,
            gating,
            normalized=normalized,
            scale=1.5,
            bias=w["rank"] if gating is Gating.SIGMOID else None,
            groups=limit,
        )
        if normalized:
            routes = scale_experts(routes, w["rank"])

        def multiplied(here: str = "", places: ExpertPlaces | None = None) -> tuple[Tensor, Tensor]:
            grouped = group_by_expert(routes, EXPERTS, places=places)
            rows = dispatch(ops.embedding(ids, w["x"]), grouped, routes if weighs_inputs else None)
            if shows_rows:
                graph.output("rows", rows)
            hidden = expert_linear(rows, grouped, w[f"{here}matrices"], w[f"{here}bias"])
            return scale_by_expert(hidden, grouped, w[f"{here}rank"]) if weighs_inputs else hidden, grouped

        if elsewhere:
            numbers = [graph.input(name, (Dim("experts", EXPERTS),), DType.I32) for name in ("own", "other")]
            hidden, grouped = multiplied("", ExpertPlaces(numbers[0], EXPERTS))
            other = multiplied("other ", ExpertPlaces(numbers[1], len(elsewhere)))
            hidden = join_experts(hidden, grouped, *other)
        else:
            hidden, grouped = multiplied()
        graph.output("routes", routes.reshape(2 * count))
        graph.output("y", combine(hidden, grouped, None if weighs_inputs else routes))
        self.plan = self.backend.compile(graph)
        self.backend.load(lambda _: None)

    def _weights(self, folder: Path, type: QuantType) -> dict[str, Weight]:
        random = np.random.default_rng(4)
        arrays = {
            "logits": np.round(random.standard_normal((IDS, EXPERTS)) * 2),  # many of them are equal
            "rank": random.standard_normal(EXPERTS),
            "x": random.standard_normal((IDS, SIZE)),
            "matrices": random.standard_normal((EXPERTS, HIDDEN, SIZE)) / 8,
            "bias": random.standard_normal((EXPERTS, HIDDEN)),
        }
        if self._elsewhere:
            stacks = ("matrices", "bias", "rank")
            arrays |= {f"other {name}": arrays[name][self._elsewhere] for name in stacks}
        types = {name: type if name.endswith("matrices") else QuantType.F32 for name in arrays}
        tensors = {name: (a.astype(np.float32), types[name]) for name, a in arrays.items()}
        write_gguf(folder / "experts.gguf", {"general.architecture": "test"}, tensors)
        weights = {
            name: Weight(a.shape, plain=name.endswith("bias"), name=name) for name, a in arrays.items()
        }
        with open_gguf(folder / "experts.gguf") as file:
            self.backend.place([(weights[name], file.tensors[name]) for name in arrays])
            return weights

    def run(self, ids: npt.NDArray[np.int64]) -> tuple[F32, F32]:
        inputs = {"ids": ids}
        if self._elsewhere:
            inputs["own"] = np.arange(EXPERTS)
            inputs["own"][self._elsewhere] = EXPERTS
            inputs["other"] = np.full(EXPERTS, len(self._elsewhere))
            inputs["other"][self._elsewhere] = np.arange(len(self._elsewhere))
        launch = self.plan.launch(inputs)
        return launch.rows("routes").copy(), launch.rows("y").copy()


@pytest.mark.parametrize("gating", Gating)
@pytest.mark.parametrize(("normalized", "weighs_inputs"), [(False, True), (True, False)])
@pytest.mark.parametrize("place", PLACES[1:], ids=str)
def test_kernels_follow_the_definition(
    tmp_path: Path, place: tuple[str, str], gating: Gating, normalized: bool, weighs_inputs: bool
) -> None:
    ids = np.random.default_rng(2).integers(IDS, size=150)
    wanted, found = (
        Mixture(tmp_path, at, gating, normalized=normalized, weighs_inputs=weighs_inputs).run(ids)
        for at in (PLACES[0], place)
    )
    np.testing.assert_array_equal(found[0][:, :3], wanted[0][:, :3])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], wanted[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("elsewhere", [[4], [20, 3, 11, 0, 7], list(range(EXPERTS - 1, -1, -1))], ids=len)
@pytest.mark.parametrize("weighs_inputs", [False, True])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_experts_in_two_places(
    tmp_path: Path, place: tuple[str, str], weighs_inputs: bool, elsewhere: Sequence[int]
) -> None:
    """Rows are joined before they are added up, so that no bit depends on the places."""
    ids = np.random.default_rng(2).integers(IDS, size=60)
    for some in (ids, ids[:1]):
        whole, split = (
            Mixture(tmp_path, place, Gating.SOFTMAX, weighs_inputs=weighs_inputs, elsewhere=there).run(some)
            for there in ((), elsewhere)
        )
        np.testing.assert_array_equal(split[0], whole[0])
        np.testing.assert_array_equal(split[1].view(np.uint32), whole[1].view(np.uint32))


@pytest.mark.parametrize("gating", Gating)
@pytest.mark.parametrize("groups", [Groups(7, 3), Groups(3, 2, best=1), Groups(3, 1, best=5)], ids=str)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_experts_are_chosen_from_the_best_groups(
    tmp_path: Path, place: tuple[str, str], gating: Gating, groups: Groups
) -> None:
    """Many ranks are equal, of experts and of groups; the lower number comes first."""
    random = np.random.default_rng(4)
    logits = np.round(random.standard_normal((IDS, EXPERTS)) * 2).astype(np.float32)
    bias = random.standard_normal(EXPERTS).astype(np.float32)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = {
        Gating.SOFTMAX: powers / powers.sum(axis=1, keepdims=True),
        Gating.SIGMOID: 1 / (1 + np.exp(-logits)) + bias,
        Gating.CHOSEN_SOFTMAX: logits,
        Gating.SQRT_SOFTPLUS: np.sqrt(np.logaddexp(np.float32(0), logits)),
        Gating.NEAREST: logits,
    }[gating]
    ids = np.arange(IDS)
    routes, _ = Mixture(tmp_path, place, gating, limit=groups).run(ids)
    size = EXPERTS // groups.count
    for ranks, chosen in zip(scores, routes[:, :3].astype(int), strict=True):
        of_groups = [sorted(ranks[g * size : (g + 1) * size])[::-1] for g in range(groups.count)]
        sums = [sum(ranks[: groups.best]) for ranks in of_groups]
        used = sorted(range(groups.count), key=lambda g: (-sums[g], g))[: groups.used]
        allowed = [expert for expert in range(EXPERTS) if expert // size in used]
        assert chosen.tolist() == sorted(allowed, key=lambda expert: (-ranks[expert], expert))[:3]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_of_equals_the_lower_number_is_chosen(tmp_path: Path, place: tuple[str, str]) -> None:
    routes, _ = Mixture(tmp_path, place, Gating.CHOSEN_SOFTMAX, count=EXPERTS).run(np.arange(IDS))
    random = np.random.default_rng(4)
    logits = np.round(random.standard_normal((IDS, EXPERTS)) * 2)
    ties = 0
    for row, chosen in zip(logits, routes[:, :EXPERTS].astype(int), strict=True):
        assert chosen.tolist() == sorted(range(EXPERTS), key=lambda expert: (-row[expert], expert))
        ties += len(set(row)) < EXPERTS
    assert ties > IDS // 2


@pytest.mark.parametrize("type", [QuantType.F32, QuantType.Q8_0, QuantType.Q4_0])
@pytest.mark.parametrize("place", PLACES[1:], ids=str)
def test_bits_do_not_depend_on_the_batch(tmp_path: Path, place: tuple[str, str], type: QuantType) -> None:
    """It tests experts with one row, few rows, and enough rows for other kernels."""
    mixture = Mixture(tmp_path, place, Gating.SOFTMAX, type=type)
    ids = np.random.default_rng(2).integers(IDS, size=200)
    _, whole = mixture.run(ids)
    for begin, end in ((0, 1), (1, 3), (3, 40), (40, 200)):
        np.testing.assert_array_equal(mixture.run(ids[begin:end])[1], whole[begin:end])


@pytest.mark.parametrize("place", PLACES[1:], ids=str)
def test_rows_that_products_round_may_be_an_output(tmp_path: Path, place: tuple[str, str]) -> None:
    ids = np.arange(40)
    mixture = Mixture(tmp_path, place, Gating.SOFTMAX, type=QuantType.Q8_0, shows_rows=True)
    rows = mixture.plan.launch({"ids": ids}).rows("rows").reshape(-1, SIZE)
    x = np.random.default_rng(4)
    x.standard_normal((IDS, EXPERTS)), x.standard_normal(EXPERTS)
    embedded = x.standard_normal((IDS, SIZE)).astype(np.float32)[ids]
    assert sorted(map(tuple, rows)) == sorted(map(tuple, embedded.repeat(3, axis=0)))
    plain = Mixture(tmp_path, place, Gating.SOFTMAX, type=QuantType.Q8_0)
    np.testing.assert_array_equal(mixture.run(ids)[1], plain.run(ids)[1])


@pytest.mark.parametrize("place", [PLACES[0], PLACES[-1]], ids=str)
def test_no_rows_are_no_rows(tmp_path: Path, place: tuple[str, str]) -> None:
    """A batch without outputs computes nothing in the last layer."""
    routes, y = Mixture(tmp_path, place, Gating.SOFTMAX).run(np.zeros(0, np.int64))
    assert (len(routes), len(y)) == (0, 0)


@pytest.mark.parametrize("place", PLACES[1:], ids=str)
def test_no_two_rows_share_a_super_block(tmp_path: Path, place: tuple[str, str]) -> None:
    """Four rows of 64 elements are as long as one super-block, which other products in the graph need."""
    random, count = np.random.default_rng(4), 4
    arrays = {
        "logits": random.standard_normal((IDS, EXPERTS)),
        "x": random.standard_normal((IDS, 64)),
        "wide": random.standard_normal((IDS, 256)),
        "up": random.standard_normal((EXPERTS, 64, 64)) / 8,
        "down": random.standard_normal((EXPERTS, 64, 64)) / 8,
    }
    types = dict.fromkeys(arrays, QuantType.F32) | dict.fromkeys(("up", "down"), QuantType.Q8_0)
    tensors: dict[str, Any] = {name: (a.astype(np.float32), types[name]) for name, a in arrays.items()}
    tensors["other"] = bytes_as(random_weights(QuantType.Q4_K, 64, 256), QuantType.Q4_K, (64, 256))
    write_gguf(tmp_path / "experts.gguf", {"general.architecture": "test"}, tensors)
    backend = open_backend(place[0], CPUOptions(threads=2, isa=place[1]))
    with open_gguf(tmp_path / "experts.gguf") as file:
        w = {name: Weight(info.shape, name=name) for name, info in file.tensors.items()}
        backend.place([(w[name], info) for name, info in file.tensors.items()])
        graph = Graph()
        ids = graph.input("ids", (Dim("tokens", 200),), DType.I32)
        routes = router(ops.embedding(ids, w["logits"]), count, Gating.SOFTMAX)
        groups = group_by_expert(routes, EXPERTS)
        rows = dispatch(ops.embedding(ids, w["x"]), groups)
        hidden = ops.relu(expert_linear(rows, groups, w["up"]))
        y = combine(expert_linear(hidden, groups, w["down"]), groups, routes)
        graph.output("y", y + ops.linear(ops.embedding(ids, w["wide"]), w["other"]))
        plan = backend.compile(graph)
        backend.load(lambda _: None)
    given = random.integers(IDS, size=200)
    whole = plan.launch({"ids": given}).rows("y").copy()
    assert np.isfinite(whole).all()
    for begin, end in ((0, 1), (1, 3), (3, 40), (40, 200)):
        found = plan.launch({"ids": given[begin:end]}).rows("y")
        np.testing.assert_array_equal(found, whole[begin:end])
