"""Workers as real processes: the same answers, and every way in which one of the two can end."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import GGUFError, ModelNotFoundError, OptionError, WorkerError
from chaski.ml import BACKENDS
from chaski.runner.service.messages import Tokenize
from chaski.runner.service.worker import Worker
from chaski.runner.service.worker import client as client_module
from chaski.runner.service.worker import process as process_module
from chaski.runner.service.worker.client import LoadOptions
from tests import foreign
from tests.tiny_llama import write_tiny_llama

ROOT = Path(__file__).parents[4]
QUESTION = [{"role": "user", "content": "What is chaski?"}]
LIVELY: dict[str, Any] = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "num_predict": 40}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("guide", threads=1, parallel=4) as shared:
        yield shared


@pytest.fixture(scope="module")
def here() -> Iterator[chaski.LLM]:
    with chaski.load("guide", threads=1, prompt_cache=False) as model:
        yield model


def same(answer: chaski.Answer, other: chaski.Answer) -> bool:
    return (answer.text, answer.token_ids, answer.logprobs) == (other.text, other.token_ids, other.logprobs)


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that ended and was not waited for counts as gone."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "waited for 10 s"
        time.sleep(0.005)


# ---- the same as in this process ----


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_the_same(worker: Worker, here: chaski.LLM, seed: int) -> None:
    options = LIVELY | {"seed": seed, "logprobs": True, "top_logprobs": 3}
    assert same(worker.chat(QUESTION, **options), here.chat(QUESTION, **options))
    ids = here.tokenize("How do I")
    for prompt in ("How do I", ids, tuple(ids)):
        assert same(worker.generate(prompt, **options), here.generate(prompt, **options))


def test_streams_are_the_same(worker: Worker, here: chaski.LLM) -> None:
    options = LIVELY | {"seed": 5, "stop": ["e", "zz"]}
    *texts, done = worker.stream("hello", **options)
    *expected, _ = here.stream("hello", **options)
    assert texts == expected
    assert isinstance(done, chaski.Done)
    assert done.stop_string == "e"


def test_text_and_ids(worker: Worker, here: chaski.LLM) -> None:
    text = "naïve \U0001f999 text\n"
    assert worker.tokenize(text) == here.tokenize(text)
    assert worker.tokenize(text, add_special=False) == here.tokenize(text, add_special=False)
    assert worker.detokenize(here.tokenize(text)) == here.detokenize(here.tokenize(text))


def test_info(worker: Worker, here: chaski.LLM) -> None:
    info = worker.info()
    assert (info.path, info.context, info.vocab_size) == (str(here.path), here.context, here.vocab_size)
    assert info.chat_template == here.chat_template
    assert info.memory.weights == here.memory().weights


def test_embeddings_are_the_same(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", llama__pooling_type=1)
    texts = ["the thin line", [1, 2, 3], "x"]
    with chaski.load(path, threads=1) as model, Worker(path, threads=1, parallel=2) as worker:
        for options in ({}, {"normalize": False}):
            expected = model.embed(texts, **options)
            assert worker.embed(texts, **options).tobytes() == expected.tobytes()
        assert worker.embed("x").shape == (1, expected.shape[1])
        wrongs: list[Any] = [[], [[]], ["x", [1 << 20]]]
        for wrong in wrongs:
            with pytest.raises(OptionError) as refused:
                model.embed(wrong)
            with pytest.raises(OptionError) as found:
                worker.embed(wrong)
            assert str(found.value) == str(refused.value)


def test_threads_get_their_own_answers(worker: Worker, here: chaski.LLM) -> None:
    found: dict[int, chaski.Answer] = {}

    def ask(seed: int) -> None:
        found[seed] = worker.generate("hello", seed=seed, **LIVELY)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same(found[seed], here.generate("hello", seed=seed, **LIVELY)) for seed in range(8))


def test_its_options_are_those_of_load() -> None:
    parameters = inspect.signature(chaski.load).parameters.keys() - {"model", "progress"}
    assert set(LoadOptions.__annotations__) == parameters
    with pytest.raises(OptionError, match="option 'contxt' is unknown; known: backend, context"):
        Worker("guide", contxt=5)  # type: ignore[call-arg]


# ---- requests that are wrong ----


def test_bad_requests_are_refused_as_in_this_process(worker: Worker, here: chaski.LLM) -> None:
    calls: list[Callable[[Any], object]] = [
        lambda model: model.generate([0, 1 << 30]),
        lambda model: model.generate([-1]),
        lambda model: model.generate([]),
        lambda model: model.generate([1] * 2000),
        lambda model: model.generate("x", stop=[""]),
        lambda model: model.generate("x", num_ctx=5),
        lambda model: model.generate("x", temperature="hot"),
        lambda model: model.generate("x", top_logprobs=5),
        lambda model: model.embed(["x"]),
    ]
    for call in calls:
        with pytest.raises(chaski.ChaskiError) as refused:
            call(here)
        with pytest.raises(type(refused.value)) as found:
            call(worker)
        assert str(found.value) == str(refused.value)


def test_what_cannot_be_sent(worker: Worker) -> None:
    with pytest.raises(OptionError, match="cannot be sent to a worker: a value of type object"):
        worker.chat([{"role": "user", "content": "hi", "note": object()}])
    assert worker.generate("hello", num_predict=1).done_reason == "length"


def test_a_huge_prompt(worker: Worker) -> None:
    """Larger than what a socket holds; it is refused, or shortened, and nothing hangs."""
    text = "hello " * 200_000
    with pytest.raises(OptionError, match="the context holds 1024"):
        worker.generate(text)
    answer = worker.generate(text, truncate=True, num_predict=1)
    assert answer.prompt_tokens == 1024
    assert answer.dropped_tokens > 100_000


# ---- cancelling ----


def test_closing_a_stream_frees_its_slot(endless: dict[str, Any]) -> None:
    seconds = []
    with Worker("guide", threads=1, parallel=1) as worker:
        for _ in range(3):
            with closing(worker.stream(**endless)) as events:
                next(events)
            started = time.perf_counter()
            worker.generate("hello", num_predict=1)
            seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.5


# ---- loading ----


def test_progress_of_loading() -> None:
    shares: list[float] = []
    with Worker("guide", threads=1, progress=shares.append) as worker:
        assert shares == []
        assert worker.pid is None
        worker.info()
        assert worker.pid is not None
    assert shares == sorted(shares)
    assert shares[-1] == 1


@pytest.mark.parametrize(
    "options", [{"context": 0}, {"backend": "none"}, {"kv_type": "f99"}, {"threads": "x"}]
)
def test_load_options_are_checked_as_by_load(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        *foreign.NAMES,
        foreign.SPLIT,
    ]:  # the worker's process does not know the backends of the tests
        monkeypatch.delitem(BACKENDS, name)
    with pytest.raises(chaski.ChaskiError) as refused:
        chaski.load("guide", **options)
    with Worker("guide", **options) as worker, pytest.raises(type(refused.value)) as found:
        worker.info()
    assert str(found.value) == str(refused.value)


def test_a_file_that_is_missing_at_first(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with Worker(path, threads=1) as worker:
        for _ in range(2):
            with pytest.raises(ModelNotFoundError, match=r"no file .*model\.gguf"):
                worker.generate("x")
        assert worker.pid is None
        write_tiny_llama(path)
        assert worker.generate("x", num_predict=1).prompt_tokens == 2


def test_a_corrupt_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + bytes(range(100)))
    with pytest.raises(GGUFError) as refused:
        chaski.load(path)
    with Worker(path) as worker, pytest.raises(GGUFError) as found:
        worker.info()
    assert str(found.value) == str(refused.value)


def test_all_that_wait_for_a_model_hear_that_it_cannot_be_loaded(tmp_path: Path) -> None:
    with Worker(tmp_path / "none.gguf") as worker:
        streams = [worker.stream("x") for _ in range(3)]
        raised = []

        def read(stream: Any) -> None:
            with pytest.raises(ModelNotFoundError):
                next(stream)
            raised.append(stream)

        threads = [threading.Thread(target=read, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(raised) == 3


def test_what_crashes_at_load_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = []
    spawn = process_module._spawn

    def counted(*arguments: Any) -> Any:
        starts.append(arguments)
        return spawn(*arguments)

    monkeypatch.setattr(process_module, "_spawn", counted)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with Worker("guide", threads=1) as worker:
        for _ in range(3):
            with pytest.raises(WorkerError, match="ended with exit status 1"):
                worker.info()
        for _ in range(3):
            with pytest.raises(
                WorkerError, match="3 times in a row without a model, and is tried again in 30 s"
            ):
                worker.info()
        assert len(starts) == 3
        monkeypatch.undo()
        monkeypatch.setattr(client_module, "_PAUSE", 0.0)
        assert worker.info().context == 1024


def test_an_interpreter_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with Worker("guide") as worker, pytest.raises(WorkerError, match="cannot be used: FileNotFoundError"):
        worker.info()


def test_its_log_goes_to_the_standard_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", chat_template=None)
    with Worker(path, threads=1) as worker:
        worker.chat(QUESTION, num_predict=1)
        pid = worker.pid
    out, err = capfd.readouterr()
    assert f"worker {pid}: WARNING: tiny.gguf has no chat template" in err
    assert out == ""


def test_it_knows_no_keys_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHASKI_API_KEYS", "CHASKI_ADMIN_KEYS"):
        monkeypatch.setenv(name, "a-secret")
    with Worker("guide", threads=1) as worker:
        worker.info()
        process = Path(f"/proc/{worker.pid}")
        assert "a-secret" not in (process / "environ").read_text()
        (limit,) = [line for line in (process / "limits").read_text().splitlines() if "core file" in line]
        assert limit.split()[4:6] == ["0", "0"]


# ---- ends ----


def test_a_kill_fails_what_is_in_flight_and_nothing_else(endless: dict[str, Any]) -> None:
    with Worker("guide", threads=1, parallel=2) as worker:
        before = worker.generate("hello", seed=1, num_predict=5)
        first = worker.pid
        assert first is not None
        streams = [worker.stream(**endless) for _ in range(4)]
        for stream in streams[:2]:
            next(stream)
        os.kill(first, signal.SIGKILL)
        for stream in streams[:2]:
            with pytest.raises(
                WorkerError, match=rf"worker of guide \(process {first}\) was ended by signal 9"
            ):
                for _ in stream:
                    pass
        assert not Path(f"/proc/{first}").exists()
        assert same(worker.generate("hello", seed=1, num_predict=5), before)
        assert worker.pid not in (None, first)
        assert isinstance(next(streams[2]), chaski.Text)


def test_a_worker_that_ends_by_itself_says_how(worker: Worker, endless: dict[str, Any]) -> None:
    for number in (signal.SIGSEGV, signal.SIGTERM):
        with closing(worker.stream(**endless)) as events:
            next(events)
            assert worker.pid is not None
            os.kill(worker.pid, number)
            with pytest.raises(WorkerError, match=f"signal {int(number)} "):
                for _ in events:
                    pass


def test_a_worker_that_is_killed_at_rest(worker: Worker) -> None:
    worker.info()
    pid = worker.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: worker.pid is None)
    assert worker.generate("hello", num_predict=1).done_reason == "length"


def test_a_request_to_a_worker_that_is_just_killed(worker: Worker) -> None:
    """Whether its end is known yet or not: nothing of the request was lost, so another process answers it."""
    expected = worker.generate("hello", num_predict=3, temperature=0)
    for _ in range(5):
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert same(worker.generate("hello", num_predict=3, temperature=0), expected)
        assert worker.pid not in (None, pid)


def test_what_a_worker_had_not_read_goes_to_the_next(worker: Worker, endless: dict[str, Any]) -> None:
    """A stopped process reads nothing; calls that nobody waits for any more are not sent again."""
    with closing(worker.stream(**endless)) as begun:
        next(begun)
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        unread = [worker.stream("hello", num_predict=3, temperature=0) for _ in range(3)]
        threads = [threading.Thread(target=lambda s=stream: results.append(list(s))) for stream in unread]
        results: list[list[Any]] = []
        for thread in threads:
            thread.start()
        cancelled = worker.start(Tokenize("hello"), lambda reply: results.append([reply]))
        time.sleep(0.2)
        cancelled.cancel()
        os.kill(pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
        assert [events[-1].reason for events in results] == ["length"] * 3
        with pytest.raises(WorkerError, match="signal 9"):
            list(begun)


def test_nothing_is_left_of_many_lives() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Worker("guide", threads=1) as worker:
        worker.info()
        before, threads = descriptors(), threading.active_count()
        for _ in range(3):
            pid = worker.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: worker.pid is None)
            worker.info()
            assert not Path(f"/proc/{pid}").exists()
        assert descriptors() == before
        assert threading.active_count() == threads
        last = worker.pid
    assert not Path(f"/proc/{last}").exists()
    assert descriptors() < before


def test_closing(endless: dict[str, Any]) -> None:
    worker = Worker("guide", threads=1)
    events = worker.stream(**endless)
    next(events)
    started = time.perf_counter()
    worker.close()
    assert time.perf_counter() - started < 1
    with pytest.raises(WorkerError, match="the worker of guide was closed before it could answer"):
        for _ in events:
            pass
    with pytest.raises(WorkerError, match="the worker of guide is closed"):
        worker.info()
    worker.close()


def test_a_worker_that_does_not_react_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_GRACE", 0.1)
    with Worker("guide", threads=1) as worker:
        worker.info()
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
    assert not Path(f"/proc/{pid}").exists()


# ---- the parent ----

PARENT = """
import os, signal, sys, time
from chaski.runner.service.messages import Tokenize
from chaski.runner.service.worker import Worker

worker = Worker("guide", threads=1)
events = worker.stream("0", temperature=0, ignore_eos=True)
next(events)
"""


def parent(rest: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT + rest],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        process_group=0,
    )


def test_a_worker_ends_with_its_parent() -> None:
    with parent("print(worker.pid, flush=True)\nfor _ in events: pass") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.kill()
    wait_until(lambda: not is_running(pid))


def test_a_parent_that_just_ends_closes_its_worker() -> None:
    with parent("print(worker.pid)") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
    assert process.returncode == 0
    assert not is_running(pid)


def test_ctrl_c_is_the_parents_affair() -> None:
    rest = """
try:
    print(worker.pid, flush=True)
    for _ in events: pass
except KeyboardInterrupt:
    events.close()
    worker.generate("hello", num_predict=1)
    print(worker.pid)
"""
    with parent(rest) as process:
        assert process.stdout is not None
        pid = process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.readline() == pid
    assert process.returncode == 0
