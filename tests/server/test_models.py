"""The choice of loaded models, with workers that report whether they fit."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import BusyError, GGUFError, NoNodeError, OutOfMemoryError
from chaski.runner.channels.messages import Describe
from chaski.server.models.loaded import ModelNeeds
from chaski.server.models.pool import ModelPool
from chaski.server.models.queue import FairQueue
from chaski.server.settings import Settings
from tests.server.fake_worker import FakeWorker, Script


def needs(name: str, **more: Any) -> ModelNeeds:
    return ModelNeeds(path=Path(f"/{name}"), name=name, **more)


def with_models(test: Callable[[ModelPool], Awaitable[None]], script: Script, **settings: Any) -> None:
    async def run() -> None:
        models = ModelPool(Settings(**settings), script.open)
        try:
            await asyncio.wait_for(test(models), 10)
        finally:
            await models.close()
            assert all(not worker.is_running for worker in script.opened)

    asyncio.run(run())


def names(models: ModelPool) -> list[str]:
    return [loaded.name for loaded in models.loaded]


async def use(models: ModelPool, name: str, **more: Any) -> None:
    async with models.use(needs(name, **more)):
        pass


def test_a_model_is_loaded_once_for_all() -> None:
    script = Script()

    async def test(models: ModelPool) -> None:
        await asyncio.gather(*(use(models, "a") for _ in range(20)))
        assert names(models) == ["a"]

    with_models(test, script)
    assert len(script.opened) == 1


def test_others_have_all_of_their_memory_before_one_is_loaded() -> None:
    script = Script()

    async def test(models: ModelPool) -> None:
        await use(models, "a")
        assert script.asked == [Describe()]
        await use(models, "b")
        assert script.asked == [Describe(), Describe(wait_loaded=True), Describe()]
        script.opened[0].is_running = False  # a dead worker has no memory, and is not restarted for this
        await use(models, "c")
        assert script.asked[3:] == [Describe(wait_loaded=True), Describe()]

    with_models(test, script)


def test_a_model_is_loaded_anew_for_other_gpus() -> None:
    script = Script()

    async def test(models: ModelPool) -> None:
        for gpus in ({}, {"num_gpu": 3}, {}, {"num_gpu": 3}, {"num_gpu": 3, "main_gpu": 1}, {"num_gpu": 0}):
            await use(models, "a", placing=gpus)

    with_models(test, script)
    assert [
        {name: worker.options[name] for name in ("num_gpu", "main_gpu") if name in worker.options}
        for worker in script.opened
    ] == [{}, {"num_gpu": 3}, {"num_gpu": 3, "main_gpu": 1}, {"num_gpu": 0}]


def test_the_one_that_was_used_the_longest_ago_goes() -> None:
    async def test(models: ModelPool) -> None:
        for name in ("a", "b", "a", "c"):
            await use(models, name)
            await asyncio.sleep(0.002)
        assert names(models) == ["c", "a"]

    with_models(test, Script(), max_loaded=2)


def test_one_that_is_used_goes_last_and_its_requests_end_first() -> None:
    async def test(models: ModelPool) -> None:
        async with models.use(needs("a")):
            waiting = asyncio.create_task(use(models, "b"))
            await asyncio.sleep(0.05)
            assert names(models) == ["a"]
            late = asyncio.create_task(use(models, "a"))  # must not keep it forever
            await asyncio.sleep(0.05)
            assert not late.done()
        await waiting
        await late
        assert names(models) == ["a"]

    with_models(test, Script(), max_loaded=1)


def test_what_does_not_fit_makes_others_go() -> None:
    script = Script()
    script.fail = (
        lambda options: OutOfMemoryError("no") if sum(w.is_running for w in script.opened) > 2 else None
    )

    async def test(models: ModelPool) -> None:
        for name in "abcd":
            await use(models, name)
            await asyncio.sleep(0.002)
        assert names(models) == ["d", "c"]

    with_models(test, script, max_loaded=9)


def test_less_in_parallel_before_giving_up() -> None:
    script = Script(fail=lambda options: OutOfMemoryError("no") if options["parallel"] > 1 else None)

    async def test(models: ModelPool) -> None:
        await use(models, "a", context=100)
        assert models.loaded[0].parallel == 1

    with_models(test, script)

    async def refused(models: ModelPool) -> None:
        with pytest.raises(OutOfMemoryError):
            await use(models, "a", context=100)
        assert names(models) == []

    with_models(refused, script, parallel=4)


def test_a_model_that_is_loaded_anew_stays_as_long_as_before() -> None:
    async def test(models: ModelPool) -> None:
        await use(models, "a", context=100, keep_alive=math.inf)
        await use(models, "a", context=200)
        assert models.loaded[0].keep_alive == math.inf
        await use(models, "a", context=300, keep_alive=20.0)
        assert models.loaded[0].keep_alive == 20.0

    with_models(test, Script())


def test_memory_that_others_will_take_is_claimed() -> None:
    script = Script(unused_bytes=1000)

    async def test(models: ModelPool) -> None:
        for name in ("a", "b", "c"):
            await use(models, name)

    with_models(test, script)
    assert [worker.options.get("claimed_memory") for worker in script.opened] == [None, 1000, 2000]


def test_a_cluster_has_one_context_for_all_replicas() -> None:
    script = Script()

    async def test(models: ModelPool) -> None:
        await use(models, "a", trained=10_000)
        await use(models, "b", trained=10_000, context=100)
        await use(models, "c", trained=2000)

    with_models(test, script, cluster="local")
    assert [worker.options["context"] for worker in script.opened] == [4096, 100, 2000]
    assert all(worker.options["parallel"] == 4 for worker in script.opened)


def test_a_cluster_loads_models_at_the_same_time_but_not_more_than_are_allowed() -> None:
    script, may_load = Script(), threading.Event()

    def fail(options: dict[str, Any]) -> None:
        if options["context"] == 77:
            assert may_load.wait(5)

    script.fail = fail

    async def test(models: ModelPool) -> None:
        slow = asyncio.create_task(use(models, "slow", context=77))
        await use(models, "a")
        await models.expire(Path("/a"))
        assert names(models) == [], "the load does not delay this"
        await use(models, "b")
        waiting = asyncio.create_task(use(models, "c"))
        await asyncio.sleep(0.05)
        assert names(models) == ["c"], "b went"
        may_load.set()
        await asyncio.gather(slow, waiting)
        assert len(models.loaded) == 2

    with_models(test, script, cluster="local", max_loaded=2)


def test_a_model_waits_while_all_allowed_models_of_a_cluster_are_loading() -> None:
    script, may_load = Script(), threading.Event()

    def fail(options: dict[str, Any]) -> None:
        if options["context"] == 77:
            assert may_load.wait(5)

    script.fail = fail

    async def test(models: ModelPool) -> None:
        slow = asyncio.create_task(use(models, "slow", context=77))
        await asyncio.sleep(0.02)
        waiting = asyncio.create_task(use(models, "a"))
        await asyncio.sleep(0.05)
        assert len(script.opened) == 1
        may_load.set()
        await asyncio.gather(slow, waiting)
        assert names(models) == ["a"]

    with_models(test, script, cluster="local", max_loaded=1)


def test_no_model_goes_for_one_that_fits_on_no_node() -> None:
    script = Script()

    async def test(models: ModelPool) -> None:
        await use(models, "a")
        script.fail = lambda options: NoNodeError("too large")
        with pytest.raises(NoNodeError):
            await use(models, "b")
        assert names(models) == ["a"]

    with_models(test, script, cluster="local")
    assert [worker.options["parallel"] for worker in script.opened] == [4, 4, 2, 1], "fewer might fit"


def test_a_cluster_gets_the_place_of_a_model_while_it_is_idle() -> None:
    lent: list[tuple[Callable[[], float | None], Callable[[], None]]] = []

    class Lent(FakeWorker):
        def lend(self, *given: Any) -> None:
            lent.append(given)

    script = Script()

    def open_lent(path: Path, *, progress: Any, **options: Any) -> FakeWorker:
        script.opened.append(Lent(script, path, options))
        return script.opened[-1]

    async def test(models: ModelPool) -> None:
        models._open_worker = open_lent
        async with models.use(needs("a")):
            ((idle_seconds, unload),) = lent
            assert idle_seconds() is None
            await asyncio.to_thread(unload)
            await asyncio.sleep(0.05)
            assert names(models) == ["a"]
        idle = idle_seconds()
        assert idle is not None
        assert 0 <= idle < 5
        for _ in range(2):
            await asyncio.to_thread(unload)
        await asyncio.sleep(0.05)
        assert names(models) == []
        await use(models, "a")
        assert len(lent) == 2

    with_models(test, script, cluster="local")


def test_errors_of_loading_name_the_model_and_no_file() -> None:
    script = Script(fail=lambda options: GGUFError("/a: broken"))

    async def test(models: ModelPool) -> None:
        for found in await asyncio.gather(*(use(models, "a") for _ in range(3)), return_exceptions=True):
            assert (type(found), str(found)) == (GGUFError, "a: broken")

    with_models(test, script)


@pytest.mark.parametrize(("context", "count"), [(None, 1), (10, 1), (100, 1), (101, 2)])
def test_only_a_larger_context_loads_anew(context: int | None, count: int) -> None:
    script = Script()

    async def test(models: ModelPool) -> None:
        await use(models, "a", context=100)
        await use(models, "a", context=context)
        assert len(script.opened) == count

    with_models(test, script)


async def gone(models: ModelPool, name: str) -> None:
    """Wait until a model is not loaded any more."""
    async with asyncio.timeout(30):
        while name in names(models):
            await asyncio.sleep(0.005)


def test_keep_alive() -> None:
    async def test(models: ModelPool) -> None:
        await use(models, "now", keep_alive=0.0)
        await use(models, "soon", keep_alive=0.5)
        await use(models, "never", keep_alive=math.inf)
        await use(models, "usual")
        await gone(models, "now")
        await gone(models, "soon")
        assert set(names(models)) == {"never", "usual"}
        await models.expire(Path("/never"))
        assert names(models) == ["usual"]

    with_models(test, Script(), max_loaded=9)


def test_a_load_does_not_delay_an_unload() -> None:
    is_loading, may_end = threading.Event(), threading.Event()

    def load_slowly(options: dict[str, Any]) -> None:
        if options["context"] == 7:
            is_loading.set()
            may_end.wait(9)

    async def test(models: ModelPool) -> None:
        await use(models, "a")
        slow = asyncio.create_task(use(models, "b", context=7))
        await asyncio.to_thread(is_loading.wait)
        await models.expire(Path("/a"))
        assert names(models) == []
        assert not slow.done()
        may_end.set()
        await slow
        assert names(models) == ["b"]

    with_models(test, Script(fail=load_slowly))


def test_a_model_that_is_just_unloaded_is_loaded_after_its_end() -> None:
    script, may_end = Script(), threading.Event()

    async def test(models: ModelPool) -> None:
        await use(models, "a")
        (first,) = script.opened
        close = first.close

        def close_slowly() -> None:
            may_end.wait(9)
            close()

        first.close = close_slowly  # type: ignore[method-assign]
        ending = asyncio.create_task(models.expire(Path("/a")))
        await asyncio.sleep(0.05)
        again = asyncio.create_task(use(models, "a"))
        await asyncio.sleep(0.05)
        assert len(script.opened) == 1
        may_end.set()
        await asyncio.gather(ending, again)
        assert [worker.is_running for worker in script.opened] == [False, True]

    with_models(test, script)


def test_a_long_request_is_not_cut_by_keep_alive() -> None:
    async def test(models: ModelPool) -> None:
        await use(models, "a", keep_alive=0.05)
        async with models.use(needs("a")):
            await asyncio.sleep(0.1)
            assert names(models) == ["a"]
            await models.expire(Path("/a"))
            assert names(models) == ["a"]
        await gone(models, "a")

    with_models(test, Script())


def test_leaving_while_it_loads_leaves_others_waiting() -> None:
    async def test(models: ModelPool) -> None:
        first, second = (asyncio.create_task(use(models, "a")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert names(models) == ["a"]

    with_models(test, Script())


def test_the_line_is_bounded_and_fair() -> None:
    async def test() -> None:
        queue = FairQueue(places=1, limit=4)
        served: list[str] = []

        async def ask(client: str, name: str) -> None:
            await queue.enter(client)
            served.append(name)
            await asyncio.sleep(0)
            queue.leave()

        await queue.enter("z")
        asks = [asyncio.create_task(ask(name[0], name)) for name in ("a1", "a2", "a3", "b1")]
        await asyncio.sleep(0)
        with pytest.raises(
            BusyError, match=r"server busy, please try again.  maximum pending requests exceeded"
        ):
            await queue.enter("c")
        asks[1].cancel()
        await asyncio.sleep(0)
        assert queue.waiting == 3
        queue.leave()
        await asyncio.gather(*asks, return_exceptions=True)
        assert served == ["a1", "b1", "a3"]
        await queue.enter("a")  # no slot is lost

    asyncio.run(test())


def test_a_place_that_came_too_late_is_passed_on() -> None:
    async def test() -> None:
        queue = FairQueue(places=1, limit=4)
        await queue.enter("a")
        waiting = asyncio.create_task(queue.enter("b"))
        await asyncio.sleep(0)
        queue.leave()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.wait_for(queue.enter("c"), 1)

    asyncio.run(test())


def test_a_place_does_not_go_to_a_request_that_was_just_cancelled() -> None:
    """The request notices its end a moment later. Until then it is still in the line."""

    async def test() -> None:
        queue = FairQueue(places=1, limit=4)
        await queue.enter("a")
        left = [asyncio.create_task(queue.enter(client)) for client in "bbc"]
        stays = asyncio.create_task(queue.enter("d"))
        await asyncio.sleep(0)
        for each in left:
            each.cancel()
        queue.leave()
        await asyncio.wait_for(stays, 1)
        await asyncio.gather(*left, return_exceptions=True)
        assert queue.waiting == 0
        last = asyncio.create_task(queue.enter("e"))
        await asyncio.sleep(0)
        last.cancel()
        queue.leave()
        await asyncio.gather(last, return_exceptions=True)
        await asyncio.wait_for(queue.enter("f"), 1)  # no place is lost

    asyncio.run(test())


def test_another_engine_loads_anew() -> None:
    script = Script()

    async def test(models: ModelPool) -> None:
        for engine in ("native", "native", None, "llama.cpp", None, "native"):
            await use(models, "a", engine=engine)
            assert engine in (None, models.loaded[0].info.engine)

    with_models(test, script)
    assert [worker.options["engine"] for worker in script.opened] == ["native", "llama.cpp", "native"]
