"""The memory that a model would take, requested before it is loaded."""

from __future__ import annotations

from chaski.runner.loading.estimate import Estimate
from chaski.runner.loading.files import OpenedModel
from chaski.store.model import find_model
from tests.server.huge_model import HUGE, huge
from tests.server.running import Running

__all__ = ["huge"]


def test_a_size_that_fits(huge: Running) -> None:
    told = huge.post("/api/memory", {"model": "huge", "num_ctx": 256, "parallel": 2}).json
    assert (told["model"], told["num_ctx"], told["parallel"]) == ("huge:latest", 256, 2)
    assert told["fits"]
    assert not told["unloads"]
    assert "fitting" not in told
    found = huge.services.catalog.find("huge").model
    needs = Estimate.of(OpenedModel.of(find_model(str(found.path))), 256, 2).needs
    assert told["devices"]["cpu"]["needed"] == needs.total["cpu"]
    assert told["devices"]["cpu"]["weights"] == needs.weights["cpu"]
    assert [kind["cells"] for kind in told["caches"]] == [512]
    assert huge.post("/api/memory", {"model": "huge"}).json["parallel"] == 4


def test_a_size_that_does_not_fit_tells_one_that_does(huge: Running) -> None:
    asked = {"model": "huge", "num_ctx": HUGE, "parallel": 4}
    told = huge.post("/api/memory", asked).json
    assert not told["fits"]
    cpu = told["devices"]["cpu"]
    assert cpu["needed"] > cpu["available"]
    smaller = told["fitting"]["num_ctx"]
    assert 0 < smaller < HUGE
    assert huge.post("/api/memory", asked | {"num_ctx": smaller}).json["fits"]
    assert not huge.post("/api/memory", asked | {"num_ctx": 2 * smaller}).json["fits"]


def test_a_context_is_at_most_that_of_the_model(huge: Running) -> None:
    assert (
        huge.post("/api/memory", {"model": "huge", "num_ctx": 4 * HUGE, "parallel": 1}).json["num_ctx"]
        == HUGE
    )


def test_what_cannot_be_told(huge: Running) -> None:
    assert huge.post("/api/memory", {"model": "none"}).status == 404
    assert huge.post("/api/memory", {"model": "huge", "num_ctx": 0}).status == 400
    assert (
        "can be addressed"
        in huge.post("/api/memory", {"model": "huge", "num_ctx": HUGE, "parallel": 64}).error
    )
