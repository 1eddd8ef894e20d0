"""Files and batches of OpenAI's API with its own client: across restarts, by owner, cancelled, refused."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import openai
import pytest

from chaski.batches.lines import read_lines
from chaski.batches.results import Results
from chaski.errors import FormatError
from chaski.names import ModelName
from chaski.server.batches import batch_service, files
from chaski.server.network.budget import TooLargeError
from chaski.server.settings import Settings
from chaski.store.bundled import bundled_model
from tests.server.conftest import SOMEWHERE
from tests.server.running import Running, running

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "1")
    monkeypatch.setenv("CHASKI_PREFIX_CACHE", "off")
    assert bundled_model(ModelName.parse("guide")) is not None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE, parallel=4), folder) as found:
        yield found


def client(server: Running, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


def lines(count: int, num_tokens: int = 8, model: str = "guide") -> bytes:
    def line(number: int) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"{number}?"}]
        body = {
            "model": model,
            "messages": messages,
            "max_tokens": num_tokens,
            "temperature": 1,
            "seed": number,
        }
        return {"custom_id": f"request-{number}", "method": "POST", "url": CHAT, "body": body}

    return b"".join(json.dumps(line(number)).encode() + b"\n" for number in range(count))


def begin(api: openai.OpenAI, content: bytes, **metadata: str) -> Any:
    sent = api.files.create(file=("requests.jsonl", BytesIO(content)), purpose="batch")
    return api.batches.create(
        input_file_id=sent.id, endpoint=CHAT, completion_window="24h", metadata=metadata or None
    )


def ended(api: openai.OpenAI, batch_id: str) -> Any:
    deadline = time.monotonic() + 60
    while (found := api.batches.retrieve(batch_id)).status in (
        "validating",
        "in_progress",
        "finalizing",
        "cancelling",
    ):
        assert time.monotonic() < deadline, found
        time.sleep(0.01)
    return found


def answers(api: openai.OpenAI, file_id: str) -> dict[str, str]:
    """Return the texts of results by id; check that no id is repeated."""
    found = [json.loads(line) for line in api.files.content(file_id).text.splitlines()]
    texts = {
        each["custom_id"]: each["response"]["body"]["choices"][0]["message"]["content"] for each in found
    }
    assert len(texts) == len(found)
    return texts


def test_a_batch_has_the_answers_of_its_requests(server: Running) -> None:
    api = client(server)
    created = begin(api, lines(6) + lines(7, model="missing").splitlines()[6] + b"\n", purpose="a test")
    assert created.status == "validating"
    assert created.metadata == {"purpose": "a test"}
    found = ended(api, created.id)
    assert found.status == "completed"
    counts = found.request_counts
    assert (counts.total, counts.completed, counts.failed) == (7, 6, 1)
    assert found.in_progress_at <= found.finalizing_at <= found.completed_at
    texts = answers(api, found.output_file_id)
    for number in range(6):
        alone = api.chat.completions.create(
            model="guide",
            messages=[{"role": "user", "content": f"{number}?"}],
            max_tokens=8,
            temperature=1,
            seed=number,
        )
        assert texts[f"request-{number}"] == alone.choices[0].message.content
    (wrong,) = [json.loads(line) for line in api.files.content(found.error_file_id).text.splitlines()]
    assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("request-6", 404)
    assert api.files.retrieve(found.output_file_id).purpose == "batch_output"
    assert found.id in [each.id for each in api.batches.list(limit=100)]


def test_files_are_listed_read_and_deleted(server: Running) -> None:
    api = client(server)
    first = api.files.create(file=("one.jsonl", BytesIO(b"one\n")), purpose="batch")
    second = api.files.create(file=("two.jsonl", BytesIO(b"two\n" * 1_000_000)), purpose="batch")
    assert (first.bytes, first.filename, second.bytes) == (4, "one.jsonl", 4_000_000)
    ids = [each.id for each in api.files.list(limit=1)]  # page after page
    assert {first.id, second.id} <= set(ids)
    assert len(ids) == len(set(ids))
    assert {each.id for each in api.files.list(purpose="batch")} == {
        each.id for each in api.files.list() if each.purpose == "batch"
    }
    assert list(api.files.list(purpose="fine-tune")) == []
    assert api.files.content(first.id).text == "one\n"
    assert api.files.delete(first.id).deleted
    with pytest.raises(openai.NotFoundError, match="No such File object"):
        api.files.retrieve(first.id)


def test_parts_of_a_form_that_are_not_read_are_named(server: Running) -> None:
    sent = client(server).files.with_raw_response.create(
        file=("a.jsonl", BytesIO(b"a\n")),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert sent.headers["x-chaski-ignored"] == ("field expires_after[anchor], field expires_after[seconds]")


@pytest.mark.long
def test_a_batch_goes_on_in_the_next_server(tmp_path: Path) -> None:
    settings = Settings(address=SOMEWHERE, parallel=2)
    with running(settings, tmp_path) as server:
        api = client(server)
        created = begin(api, lines(60, num_tokens=24))
        while not (done := api.batches.retrieve(created.id).request_counts.completed):
            time.sleep(0.002)
    assert done < 60
    with running(settings, tmp_path) as server:
        api = client(server)
        found = ended(api, created.id)
        assert (found.status, found.request_counts.completed) == ("completed", 60)
        again = ended(api, begin(api, lines(60, num_tokens=24)).id)
        assert answers(api, found.output_file_id) == answers(api, again.output_file_id)


def test_a_cancelled_batch_keeps_what_is_done(server: Running) -> None:
    api = client(server)
    created = begin(api, lines(200, num_tokens=24))
    while not api.batches.retrieve(created.id).request_counts.completed:
        time.sleep(0.002)
    api.batches.cancel(created.id)
    found = ended(api, created.id)
    assert found.status == "cancelled"
    assert 0 < len(answers(api, found.output_file_id)) < 200
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'cancelled'"):
        api.batches.cancel(created.id)


@pytest.mark.parametrize(
    ("content", "message", "line"),
    [
        (b"words\n", "line 1: no JSON", 1),
        (lines(1) + lines(1), "line 2: an earlier line has the custom_id 'request-0', too", 2),
        (lines(2).replace(CHAT.encode(), b"/v1/completions", 1), f"line 1: url must be {CHAT}", 1),
        (b"\n", "it has no requests", None),
    ],
    ids=["words", "twice", "route", "empty"],
)
def test_a_wrong_file_fails_with_the_line(
    server: Running, content: bytes, message: str, line: int | None
) -> None:
    api = client(server)
    found = ended(api, begin(api, content).id)
    assert found.status == "failed"
    (error,) = found.errors.data
    assert message in error.message
    assert error.line == line
    assert "/" not in error.message.replace(CHAT, "")


def test_keys_do_not_see_files_and_batches_of_others(tmp_path: Path) -> None:
    with running(Settings(address=SOMEWHERE, api_keys=("one", "two")), tmp_path) as server:
        one, two = client(server, "one"), client(server, "two")
        created = begin(one, lines(1))
        assert not [*two.files.list(), *two.batches.list()]
        for call in (two.batches.retrieve, two.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(created.id)
        with pytest.raises(openai.NotFoundError):
            two.batches.create(input_file_id=created.input_file_id, endpoint=CHAT, completion_window="24h")
        with pytest.raises(openai.NotFoundError):
            two.files.content(created.input_file_id)
        assert ended(one, created.id).status == "completed"
        with pytest.raises(openai.AuthenticationError):
            client(server, "three").files.list()
    folders = [path for path in (tmp_path / "chaski" / "files").iterdir() if path.is_dir()]
    assert len(folders) == 1
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "chaski" / "files").rglob("*"))


def test_names_of_folders_tell_no_key_and_former_ones_stay_usable(tmp_path: Path) -> None:
    folder = tmp_path / "chaski" / "files"
    former = folder / sha256(b"files of one").hexdigest()[:32]
    settings = Settings(address=SOMEWHERE, api_keys=("one",))
    with running(settings, tmp_path) as server:
        kept = client(server, "one").files.create(file=("a.jsonl", b"{}"), purpose="batch")
    (named,) = (path for path in folder.iterdir() if path.is_dir())
    assert named != former
    named.rename(former)
    with running(settings, tmp_path) as server:
        assert [each.id for each in client(server, "one").files.list()] == [kept.id]
    assert named.is_dir()
    assert not former.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "/v1/images"}, "endpoint must be one of"),
        ({"completion_window": "1h"}, "completion_window must be 24h"),
        ({"input_file_id": "../../x"}, "No such File object"),
    ],
)
def test_wrong_batches_are_refused(server: Running, options: dict[str, Any], message: str) -> None:
    body = {"input_file_id": "file-0", "endpoint": CHAT, "completion_window": "24h"} | options
    reply = server.post("/v1/batches", body)
    assert reply.status in (400, 404)
    assert message in reply.json["error"]["message"]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({str(number): "x" for number in range(17)}, "17 pairs; at most 16"),
        ({"k" * 65: "x"}, "a key of 65 characters"),
        ({"k": "x" * 513}, "metadata.k must be a string of at most 512"),
        ({"k": [1]}, "metadata.k must be a string"),
    ],
)
def test_metadata_has_openai_s_limits(server: Running, metadata: dict[str, Any], message: str) -> None:
    batch = {"input_file_id": "file-0", "endpoint": CHAT, "completion_window": "24h", "metadata": metadata}
    response = {"model": "guide", "input": "hello", "max_output_tokens": 1, "metadata": metadata}
    for path, body in (("/v1/batches", batch), ("/v1/responses", response)):
        reply = server.post(path, body)
        assert reply.status == 400
        assert message in reply.json["error"]["message"]


def test_damaged_states_are_left_out(tmp_path: Path) -> None:
    """A state with a missing field is skipped, both in the list and when the server starts."""
    with running(Settings(address=SOMEWHERE, parallel=4), tmp_path) as server:
        api = client(server)
        first, second = (ended(api, begin(api, lines(1)).id) for _ in range(2))
    (state,) = (tmp_path / "chaski" / "files").glob(f"*/{first.id}/batch.json")
    (about,) = (tmp_path / "chaski" / "files").glob(f"*/{first.input_file_id}/about.json")
    for path in (state, about):
        kept = json.loads(path.read_bytes())
        path.write_text(json.dumps({name: kept[name] for name in kept if name != "created_at"}))
    with running(Settings(address=SOMEWHERE, parallel=4), tmp_path) as server:
        api = client(server)
        assert [each.id for each in api.batches.list()] == [second.id]
        assert first.input_file_id not in [each.id for each in api.files.list()]
        with pytest.raises(openai.NotFoundError):
            api.batches.retrieve(first.id)


def test_a_page_reads_its_own_states_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(Settings(address=SOMEWHERE, parallel=4), tmp_path) as server:
        api = client(server)
        for _ in range(4):
            ended(api, begin(api, lines(1)).id)
        whole = [each.id for each in api.batches.list(limit=100)]
        reads: list[str] = []
        original = files.read_object

        def counted(path: Path, form: type[files.Kept]) -> dict[str, Any] | None:
            reads.append(path.parent.name)
            return original(path, form)

        for module in (files, batch_service):
            monkeypatch.setattr(module, "read_object", counted)
        page = api.batches.list(limit=1, after=whole[1])
        assert [each.id for each in page.data] == reads == [whole[2]]
        assert page.has_more


def test_what_an_interrupted_upload_left_is_counted_and_removed(tmp_path: Path) -> None:
    store = files.FileStore(tmp_path, 1000)
    (tmp_path / "owner").mkdir()
    left = tmp_path / "owner" / "0.tmp"
    left.write_bytes(bytes(900))
    with pytest.raises(TooLargeError):
        store.require_room(200)
    os.utime(left, (0, 0))
    store.require_room(200)
    assert not left.exists()


def test_checking_a_file_takes_no_thread_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()

    def checked(content: Path, endpoint: str) -> dict[str, str]:
        may_end.wait(30)
        raise FormatError("line 1: not in this test")

    monkeypatch.setattr(batch_service, "_checked", checked)
    with running(Settings(address=SOMEWHERE, parallel=4), tmp_path) as server:
        api = client(server)
        begun = [begin(api, lines(1)).id for _ in range(40)]
        start = time.monotonic()
        assert server.get("/api/tags").status == 200
        assert time.monotonic() - start < 5
        may_end.set()
        assert {ended(api, each).status for each in begun} == {"failed"}


def test_requests_and_results_take_no_thread_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, set[str]] = {"read": set(), "opened": set(), "added": set()}

    def noted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            names[what].add(threading.current_thread().name.rpartition("_")[0])
            return function(*arguments)

        return call

    def noted_lines(content: Path) -> Iterator[Any]:
        begun = iter(read_lines(content))
        while (line := noted("read", next)(begun, None)) is not None:
            yield line

    monkeypatch.setattr(batch_service, "read_lines", noted_lines)
    monkeypatch.setattr(Results, "add", noted("added", Results.add))
    monkeypatch.setattr(Results, "__init__", noted("opened", Results.__init__))
    with running(Settings(address=SOMEWHERE, parallel=4), tmp_path) as server:
        api = client(server)
        assert ended(api, begin(api, lines(2)).id).status == "completed"
    own = {"chaski-batch-line"}
    assert names == {"read": own | {"chaski-batch-check"}, "opened": {"chaski-files"}, "added": own}


def test_wrong_uploads_are_refused(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="purpose must be batch"):
        client(server).files.create(file=("a", BytesIO(b"x")), purpose="fine-tune")
    for body, headers in (
        (b"{}", {"Content-Type": "application/json"}),
        (b"x", {"Content-Type": "multipart/form-data"}),
        (b"--x\r\n\r\n", {"Content-Type": "multipart/form-data; boundary=x"}),
        (b"--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}),
    ):
        reply = server.ask("POST", "/v1/files", body, headers)
        assert reply.status == 400, reply.body
    reply = server.ask("POST", "/v1/files", b"", {"Content-Length": "900000000"})
    assert reply.status == 413


def test_what_is_deleted_while_files_are_counted_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = files.FileStore(tmp_path, 3 * 4096)
    for name in ("file-0", "batch_0"):
        with stored.receiving("owner") as content:
            content.write_bytes(b"x")
            stored.add("owner", content, "a", "batch", name)
    scan = os.scandir

    def scan_late(path: Any) -> Any:
        if str(path).endswith("batch_0"):
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scan_late)
    stored.require_room(1)


def test_files_stay_within_their_limit(tmp_path: Path) -> None:
    with running(Settings(address=SOMEWHERE, files=1000), tmp_path) as server:
        api = client(server)
        api.files.create(file=("a", BytesIO(b"x" * 500)), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="which leaves too little room"):
            api.files.create(file=("a", BytesIO(b"x" * 600)), purpose="batch")
        assert len(list(api.files.list())) == 1
    with running(Settings(address=SOMEWHERE, files=16384), tmp_path / "tiny") as server:
        api = client(server)
        for _ in range(2):  # with their descriptions, they occupy four blocks of the disk
            api.files.create(file=("a", BytesIO(b"x")), purpose="batch")
        with pytest.raises(openai.APIStatusError, match="files occupy 16384 of 16384 bytes"):
            api.files.create(file=("a", BytesIO(b"x")), purpose="batch")
    takes_none = running(Settings(address=SOMEWHERE, files=0), tmp_path)
    with takes_none as server, pytest.raises(openai.BadRequestError, match="accepts no files"):
        client(server).files.create(file=("a", BytesIO(b"x")), purpose="batch")
