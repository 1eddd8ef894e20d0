"""`ps`, `stop` and `run` with a running server, and without one."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.cli.remote_model import RemoteModel
from chaski.cli.session import Session
from chaski.errors import ChaskiError
from chaski.remote import running_server
from chaski.server.settings import Settings
from tests.rewriting import write_split
from tests.server.conftest import SOMEWHERE, models
from tests.server.running import Running, running, wait_until
from tests.tiny_llama import write_tiny_llama

__all__ = ["models"]


CHECKPOINT = Path(__file__).parents[1] / "data" / "checkpoints" / "qwen3"


@pytest.fixture
def server(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    with running(Settings(address=SOMEWHERE, parallel=2), models) as found:
        monkeypatch.setenv("OLLAMA_HOST", f"127.0.0.1:{found.port}")
        yield found


def chaski(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, arguments)


def test_run_asks_the_server(server: Running) -> None:
    result = chaski(
        "run", "guide", "how do I use fewer cores?", "--temperature", "0", "--num-predict", "6", "--verbose"
    )
    assert result.stdout == "Use `--threads`: `chaski\n"
    assert "eval count:" in result.stderr
    assert [loaded.name for loaded in server.services.models.loaded] == ["guide:latest"]
    raw = chaski("run", "guide", "--raw", "Llamas", "--temperature", "0", "--num-predict", "4")
    assert raw.exit_code == 0
    wrong = chaski("run", "guide", "x", "--top-p", "nan")
    assert wrong.exit_code == 2


def test_run_follows_a_format_of_the_server(server: Running) -> None:
    number = {"type": "object", "properties": {"n": {"enum": [7]}}, "required": ["n"]}
    schema = json.dumps(number | {"additionalProperties": False})
    asked = ("run", "guide", "how many?", "--temperature", "0")
    assert json.loads(chaski(*asked, "--format", schema).stdout) == {"n": 7}
    assert chaski(*asked, "--format", "json", "--num-predict", "5").stdout.lstrip().startswith("{")
    assert "the format is a list, but a JSON schema is an object" in chaski(*asked, "--format", "[1]").stderr


@pytest.mark.long
def test_a_chat_asks_the_server_for_another_context(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options go with each message; the server's model begins with turns."""
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho\x1b[31m"}]
    server.post("/api/create", {"model": "turns", "from": "helper", "messages": turns})
    lines = "/set parameter num_ctx 500\n/set parameter num_predict 2\nhello\n/save small\n"
    typed: Iterator[str | EOFError] = iter([*lines.splitlines(), EOFError()])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, EOFError):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("chaski.cli.run._whole_prompt", lambda arguments: None)
    result = chaski("run", "turns")
    assert result.exit_code == 0
    assert result.stdout.startswith(">>> hi\nho\x1b[31m\n\n")  # unchanged in a pipe
    saved = server.post("/api/show", {"model": "small"}).json["parameters"]
    assert [line.split() for line in saved.splitlines()] == [
        ["num_ctx", "500"],
        ["num_predict", "2"],
        ["temperature", "0.0"],
    ]
    for name in ("turns", "small"):
        server.ask("DELETE", "/api/delete", {"model": name})


def test_run_says_how_long_a_model_stays(server: Running) -> None:
    asked = ("run", "guide", "hello", "--num-predict", "1")
    assert chaski(*asked, "--keepalive", "-1").exit_code == 0
    assert chaski("ps").stdout.splitlines()[1].endswith("Forever    native")
    assert chaski(*asked, "--keepalive", "0").exit_code == 0
    wait_until(lambda: not server.services.models.loaded)
    assert "invalid duration" in chaski(*asked, "--keepalive", "soon").stderr


@pytest.mark.long
def test_run_prints_vectors(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors are the same with a server and without."""
    path = write_tiny_llama(tmp_path / "vectors.gguf", llama__pooling_type=1)
    digest = f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    server.post(f"/api/blobs/{digest}", path.read_bytes())
    server.post("/api/create", {"model": "vectors", "files": {"a.gguf": digest}})
    served = chaski("run", "vectors", "in the", "end")
    local = chaski("run", str(path), "in the", "end")
    server.ask("DELETE", "/api/delete", {"model": "vectors"})
    assert served.stdout == local.stdout
    assert np.linalg.norm(json.loads(local.stdout)) == pytest.approx(1)
    short = json.loads(chaski("run", str(path), "in the end", "--dimensions", "5").stdout)
    assert len(short) == 5
    assert np.linalg.norm(short) == pytest.approx(1)
    long = "x " * 400
    assert chaski("run", str(path), long).exit_code == 0
    assert "the context holds 256" in chaski("run", str(path), long, "--truncate=false").stderr


def test_ps_and_stop(server: Running) -> None:
    assert chaski("ps").stdout.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "ENGINE"]
    server.post("/api/generate", {"model": "helper"})
    (_, row, context) = chaski("ps").stdout.splitlines()
    assert context == "helper:latest: context: the model's own"
    assert row.split()[0] == "helper:latest"
    assert "100% CPU" in row
    [shown] = json.loads(chaski("ps", "HELP", "--json").stdout)["models"]
    assert (shown["name"], shown["engine"]) == ("helper:latest", "native")
    assert json.loads(chaski("ps", "x", "--json").stdout)["models"] == []
    assert {each["name"] for each in json.loads(chaski("list", "--json").stdout)["models"]} >= {
        "helper:latest"
    }
    assert json.loads(chaski("show", "helper", "--json").stdout)["details"]["family"] == "llama"
    assert row.endswith("from now    native")
    server.post("/api/generate", {"model": "helper", "prompt": "x " * 40, "options": {"num_predict": 1}})
    prefixes = chaski("ps").stdout.splitlines()[-1]
    assert re.fullmatch(r"helper:latest: prefix cache: 1 block \(\d+ KB\) in memory", prefixes), prefixes
    server.post("/api/generate", {"model": "helper", "keep_alive": -1})
    assert chaski("ps", "HELP").stdout.splitlines()[1].endswith("Forever    native")
    assert chaski("stop", "helper").exit_code == 0
    assert len(chaski("ps").stdout.splitlines()) == 1
    missing = chaski("stop", "nobody")
    assert missing.exit_code == 1
    assert 'couldn\'t find model "nobody" to stop' in missing.stderr


@pytest.mark.long
def test_commands_on_models_obey_ollama_host(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them use the store of the server; the local one stays empty."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "here"))
    weights = write_tiny_llama(tmp_path / "tiny.gguf")
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM ./tiny.gguf\nSYSTEM be brief\x1b[31m\nPARAMETER stop a\nDRAFT ./tiny.gguf")
    made = chaski("create", "there", "-f", str(modelfile))
    assert (made.exit_code, made.stderr.splitlines()[-1]) == (0, "success")
    assert "there:latest" in [model["name"] for model in server.get("/api/tags").json["models"]]
    assert chaski("create", "again", "-f", str(modelfile)).exit_code == 0  # the server has the file already
    assert chaski("cp", "there", "elsewhere").stdout == "copied 'there' to 'elsewhere'\n"
    header, *rows = chaski("list", "EL").stdout.splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "MODIFIED"]
    assert [row.split()[0] for row in rows] == ["elsewhere:latest"]
    shown = chaski("show", "elsewhere", "--verbose").stdout
    for text in ("architecture", "be brief\\x1b[31m", "tokenizer.ggml.model", "blk.0.attn_q.weight", "stop"):
        assert text in shown
    assert chaski("show", "elsewhere", "--system").stdout == "be brief\x1b[31m\n"
    assert "elsewhere has no license" in chaski("show", "elsewhere", "--license").stderr
    assert "unset OLLAMA_HOST" in chaski("show", "elsewhere", "--memory").stderr
    assert chaski("show", str(weights), "--memory").exit_code == 0  # a file is always local
    assert chaski("rm", "there", "elsewhere", "again").stdout.count("deleted") == 3
    assert "elsewhere:latest" not in chaski("list").stdout
    assert "not found" in chaski("rm", "there").stderr
    assert "not found" in chaski("cp", "there", "x").stderr
    pulled = chaski("pull", "http://127.0.0.1:9/me/model", "--insecure")
    assert pulled.stderr.splitlines()[0] == "pulling manifest"  # by the server, which may lack access
    assert pulled.exit_code == 1
    assert chaski("push", "127.0.0.1:9/me/model").exit_code == 1
    note = f"Note: this command uses the store of this machine, not of {server.url}"
    assert note in chaski("verify").stderr
    assert note in chaski("prune").stderr
    assert not (tmp_path / "here").exists()


def test_a_server_quantizes(server: Running, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf")
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text("FROM ./tiny.gguf")
    made = chaski("create", "small", "-q", "q8_0", "-f", str(modelfile))
    assert (made.exit_code, made.stderr.splitlines()[-1]) == (0, "success")
    assert "model to Q8_0" in made.stderr
    details = server.post("/api/show", {"model": "small"}).json["details"]
    assert details["quantization_level"] == "Q8_0"
    refused = chaski("create", "small", "-q", "q1", "-f", str(modelfile))
    assert (refused.exit_code, "unsupported quantization type Q1" in refused.stderr) == (1, True)


def test_a_file_in_parts_is_sent_whole(server: Running, tmp_path: Path) -> None:
    parts = write_split(write_tiny_llama(tmp_path / "tiny.gguf"), tmp_path)
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {parts[0]}\nDRAFT {parts[1]}")
    made = chaski("create", "parted", "-f", str(modelfile))
    assert (made.exit_code, made.stderr.splitlines()[-1]) == (0, "success")
    assert "split.count" not in server.post("/api/show", {"model": "parted"}).json["model_info"]


def test_what_a_server_cannot_be_told(server: Running, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf")
    modelfile = tmp_path / "Modelfile"
    for text, message in (
        ("FROM helper\nFROM ./tiny.gguf", "FROM must name one model, or GGUF files"),
        ("FROM helper\nDRAFT helper", "DRAFT must name a GGUF file"),
        (f"FROM {CHECKPOINT}", "`chaski convert`"),
    ):
        modelfile.write_text(text)
        assert message in chaski("create", "x", "-f", str(modelfile)).stderr
    modelfile.write_text("FROM ./tiny.gguf")
    assert (
        "--link works only with the store of this machine"
        in chaski("create", "x", "--link", "-f", str(modelfile)).stderr
    )


def test_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    store = (["list"], ["show", "guide"], ["rm", "x"], ["cp", "x", "y"], ["pull", "x"], ["push", "x"])
    for arguments in (["ps"], ["stop", "guide"], *store):
        result = chaski(*arguments)
        assert result.exit_code == 1
        assert "run 'chaski serve' to start one" in result.stderr
    alone = chaski("run", "guide", "how do I use fewer cores?", "--temperature", "0", "--num-predict", "6")
    assert alone.stdout == "Use `--threads`: `chaski\n"


def test_serve_refuses_threads_that_cannot_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHASKI_THREADS", "9999")
    for arguments in (("serve",), ("bench", "guide"), ("run", "guide", "hello")):
        assert "threads = 9999 must be at most" in chaski(*arguments).stderr


def test_serve_refuses_what_is_not_safe() -> None:
    result = chaski("serve", "--host", "0.0.0.0")
    assert result.exit_code == 1
    assert "CHASKI_OPEN=1" in result.stderr


def test_errors_of_the_server_name_the_model_as_it_was_typed(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(RemoteModel(running_server(), "guide"), {}, name="guide")
    session.tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with pytest.raises(ChaskiError, match=r"^guide does not support tools"):
        session.answer("hello")
    assert chaski("rm", "helpr").stderr == "Error: model 'helpr' not found; did you mean helper?\n"
    assert chaski("stop", "helpr").stderr.endswith('model "helpr" to stop; did you mean helper?\n')
