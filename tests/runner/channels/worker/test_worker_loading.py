"""Workers that load a model: progress, options, files that are missing or corrupt, crashes, logs."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.errors import GGUFError, ModelNotFoundError, WorkerError
from chaski.ml import BACKENDS
from chaski.runner.channels.worker import client as client_module
from chaski.runner.channels.worker import process as process_module
from chaski.runner.channels.worker.client import Worker
from tests.runner.channels.worker.workers import QUESTION
from tests.tiny_llama import write_tiny_llama


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
    # The worker's process does not know the backends of tests.
    for name in set(BACKENDS) - {"cpu", "cuda", "reference", "sharded"}:
        monkeypatch.delitem(BACKENDS, name)
    with pytest.raises(chaski.ChaskiError) as refused:
        chaski.load("guide", **options)
    with Worker("guide", **options) as worker, pytest.raises(type(refused.value)) as found:
        worker.info()
    assert str(found.value) == str(refused.value)


@pytest.mark.long
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


def test_a_version_that_was_installed_meanwhile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("chaski.runner.channels.worker.client.protocol", lambda: "0" * 16)
    worker = Worker(tmp_path / "model.gguf")
    with pytest.raises(WorkerError, match=r"another version of chaski was installed.* restart the program"):
        worker.info()
    worker.close()


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
            with pytest.raises(WorkerError, match="3 times in a row; the next attempt is possible in 30 s"):
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
