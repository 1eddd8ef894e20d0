"""llama.cpp's routes that keep slots in files: its fields and errors, after restarts, with keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from chaski.server.settings import Settings
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running

PROMPT = "What is chaski, and which models does it run? " * 4
SAVE, RESTORE, ERASE = (f"/slots/0?action={action}" for action in ("save", "restore", "erase"))
FILE = {"filename": "chat 1.bin"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    return tmp_path / "made" / "states"


def served(models: Path, folder: Path | None, **more: Any) -> Any:
    return running(Settings(address=SOMEWHERE, parallel=2, states=folder, **more), models)


def ask(server: Running, **headers: str) -> dict[str, Any]:
    asked = {"model": "helper", "prompt": PROMPT, "raw": True, "stream": False, "options": {"seed": 1}}
    found: dict[str, Any] = server.post("/api/generate", asked, **headers).json
    return found


def test_a_slot_is_saved_and_restored_after_a_restart(models: Path, folder: Path) -> None:
    with served(models, folder) as server:
        first = ask(server)
        saved = server.post(SAVE, FILE).json
    held = first["prompt_eval_count"] + first["eval_count"] - 1
    timings = saved.pop("timings")
    size = (folder / "chat 1.bin").stat().st_size
    assert saved == {"id_slot": 0, "filename": "chat 1.bin", "n_saved": held, "n_written": size}
    assert timings.keys() == {"save_ms"}
    assert folder.stat().st_mode & 0o777 == 0o700
    with served(models, folder) as server:
        found = server.post(f"{RESTORE}&model=helper", FILE).json
        assert found.pop("timings")["restore_ms"] > 0
        assert found == {"id_slot": 0, "filename": "chat 1.bin", "n_restored": held, "n_read": size}
        again = ask(server)
        assert again["prompt_cached_count"] == first["prompt_eval_count"] - 1
        assert again["response"] == first["response"]
        erased = server.post(ERASE, {}).json
        assert erased == {"id_slot": 0, "n_erased": held}
        assert "prompt_cached_count" not in ask(server)


@pytest.mark.long
def test_files_take_no_more_than_they_may(models: Path, folder: Path) -> None:
    with served(models, folder) as server:
        ask(server)
        size = server.post(SAVE, FILE).json["n_written"]
    with served(models, folder, states_size=2 * size - 1) as server:
        ask(server)
        refused = server.post(SAVE, {"filename": "other"})
        assert refused.status == 400
        assert f"more than the {size - 1:,} bytes" in refused.json["error"]["message"]
        assert "CHASKI_STATES_SIZE" in refused.json["error"]["message"]
        assert [each.name for each in folder.iterdir()] == ["chat 1.bin"]
        assert server.post(SAVE, FILE).json["n_written"] == size  # it replaces itself
        (folder / "chat 1.bin").unlink()
        (folder / "0123.1.tmp").write_bytes(bytes(size))
        assert server.post(SAVE, FILE).status == 400
        os.utime(folder / "0123.1.tmp", (0, 0))  # the leftover of a crash
        assert server.post(SAVE, FILE).json["n_written"] == size
        assert [each.name for each in folder.iterdir()] == ["chat 1.bin"]


def test_erasing_needs_no_body(models: Path, folder: Path) -> None:
    with served(models, folder) as server:
        ask(server)
        assert server.ask("POST", ERASE).json["n_erased"] > 0


def test_errors_are_those_of_llama_cpp(models: Path, folder: Path) -> None:
    with served(models, None) as server:
        reply = server.post(SAVE, FILE)
        assert (reply.status, reply.json["error"]["type"]) == (501, "not_supported_error")
        assert "CHASKI_STATES" in reply.json["error"]["message"]
    with served(models, folder) as server:
        assert "no model is in memory" in server.post(SAVE, FILE).json["error"]["message"]
        ask(server)
        for path, said in (
            ("/slots/0?action=sleep", "Invalid action"),
            ("/slots/0", "Invalid action"),
            ("/slots/first?action=save", "Invalid slot ID"),
            ("/slots/2?action=save", "slot 2 does not exist"),
            ("/slots/1?action=save", "slot 1 holds no tokens"),
            ("/slots/1?action=erase", "slot 1 holds no tokens"),
            (RESTORE, "the file does not exist"),
        ):
            reply = server.post(path, FILE)
            assert (reply.status, said in reply.json["error"]["message"]) == (400, True), (path, reply.json)
        (folder / "bad").write_bytes(b"chaski state 1\n")
        assert server.post(RESTORE, {"filename": "bad"}).status == 400
        assert server.post(f"{SAVE}&model=nobody", FILE).status == 404


def test_names_lead_nowhere_else(models: Path, folder: Path) -> None:
    names = [
        "",
        ".",
        "..",
        "a/b",
        "/tmp/a",
        "../a",
        "a\\b",
        "a..b",
        ".a",
        "a.",
        " a",
        "a ",
        "a\0",
        "a\n",
        "a:b",
    ]
    with served(models, folder) as server:
        for name in (*names, "ü" * 150):
            for path in (SAVE, RESTORE):
                reply = server.post(f"{path}&model=helper", {"filename": name})
                said = reply.json["error"]["message"]
                assert (reply.status, "it must consist of" in said) == (400, True), name
    assert not folder.exists()


def test_only_admins_use_files_and_each_their_own(models: Path, folder: Path) -> None:
    with served(models, folder, api_keys=("user",), admin_keys=("one", "two")) as server:
        user, one, two = ({"Authorization": f"Bearer {key}"} for key in ("user", "one", "two"))
        ask(server, **one)
        for path in (SAVE, RESTORE, ERASE):
            assert server.post(path, FILE).status == 401
            assert server.post(path, FILE, **user).status == 403
        assert "holds no tokens" in server.post(SAVE, FILE, **two).json["error"]["message"]
        assert server.post(SAVE, FILE, **one).status == 200
        assert "another cache_salt or API key" in server.post(RESTORE, FILE, **two).json["error"]["message"]
        assert "holds no tokens" in server.post(ERASE, FILE, **two).json["error"]["message"]
        assert server.post(RESTORE, FILE, **one).status == 200
