"""list, cp, rm, prune, verify, create, pull, push and show, on small stores."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.names import ModelName
from chaski.store.store import Store
from tests.store.fake_registry import FakeRegistry
from tests.store.stores import put_by_hand, snapshot

ROOT = Path(__file__).parents[2]
LIBRARY = "registry.ollama.ai/library"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with FakeRegistry().running() as running:
        yield running


def chaski(*arguments: str) -> Result:
    return CliRunner().invoke(chaski_command, arguments)


def digest_of(name: str) -> str:
    return Store.default().entry(ModelName.parse(name)).digest.short


def test_the_list(root: Path) -> None:
    (guide,) = chaski("list").output.splitlines()[1:]
    assert guide.startswith("guide:latest    ")
    for name, size, days in (("one/latest", 4_700_000, 3), ("Two/1b", 7, 0), ("one/new", 25_000, 1)):
        path = put_by_hand(root, f"{LIBRARY}/{name}", {"model": bytes(size)}, b"{}")
        then = time.time() - days * 86400 - 100
        os.utime(path, (then, then))
    before = snapshot(root)
    ids = [digest_of(name) for name in ("two:1b", "one:new", "one")]
    rows = [
        "NAME            ID              SIZE      MODIFIED",
        f"Two:1b          {ids[0]}    9 B       About a minute ago",
        f"one:new         {ids[1]}    25 KB     24 hours ago",
        f"one:latest      {ids[2]}    4.7 MB    3 days ago",
    ]
    *shown, last = chaski("list").output.splitlines()
    assert (shown, last.split()[0]) == (rows, "guide:latest")
    assert chaski("ls", "TWO").output.split()[4:6] == ["Two:1b", ids[0]]
    assert [line.split()[0] for line in chaski("list", "one").output.splitlines()] == [
        "NAME",
        "one:new",
        "one:latest",
    ]
    assert snapshot(root) == before


@pytest.mark.timed
def test_the_list_is_quick_and_light(root: Path) -> None:
    for number in range(20):
        put_by_hand(root, f"{LIBRARY}/model/{number}", {"model": b"weights"})
    program = (
        "import sys, time\n"
        "from chaski.cli.main import chaski_command\n"
        "chaski_command(['list'], standalone_mode=False)\n"
        "print(*sys.modules, time.process_time(), file=sys.stderr)\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
        for _ in range(3)
    ]
    assert len(runs[0].stdout.splitlines()) == 22
    assert not {"numpy", "httpcore2", "chaski.formats.gguf", "jinja2"} & set(runs[0].stderr.split())
    # Processor time; other load on the machine does not count, but slows it down.
    assert min(float(run.stderr.split()[-1]) for run in runs) < 0.3


def test_copies_and_removals(root: Path) -> None:
    put_by_hand(root, f"{LIBRARY}/one/latest", {"model": b"weights"})
    assert chaski("cp", "one", "me/two:1").output == "copied 'one' to 'me/two:1'\n"
    assert digest_of("me/two:1") == digest_of("one")
    assert chaski("rm", "one", "me/two:1").output == "deleted 'one'\ndeleted 'me/two:1'\n"
    assert list(Store(root).blobs) == []
    result = chaski("rm", "one")
    assert (result.exit_code, result.stderr) == (1, "Error: model 'one' not found\n")
    assert chaski("cp", "one", "two").stderr == "Error: model 'one' not found\n"
    assert chaski("cp", "../one", "two").stderr.startswith("Error: invalid model name")


def test_verification(root: Path) -> None:
    put_by_hand(root, f"{LIBRARY}/one/latest", {"model": b"weights"}, b"{}")
    assert chaski("verify").output == "2 files, 9 B: all intact\n"
    weights = Store(root).entry(ModelName.parse("one")).manifest.layers[0].digest
    (root / "blobs" / weights.file_name).write_bytes(b"Weights")
    result = chaski("verify", "one")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "FILE            PROBLEM                                               MODELS",
        f"{weights.short}    damaged: its content has another digest; set aside    one:latest",
    ]
    assert result.stderr.startswith("Error: 1 of 2 files are missing or damaged")
    gone = chaski("run", "one", "hello").stderr
    assert gone == f"Error: blob {weights.short} of one is missing; pull or create it again\n"


def test_pruning(root: Path) -> None:
    put_by_hand(root, f"{LIBRARY}/one/latest", {"model": b"weights"}, b"{}")
    leftover = root / "blobs/sha256-leftover"
    leftover.write_bytes(bytes(5000))
    os.utime(leftover, (1, 1))
    assert chaski("prune").output == "deleted 1 files, 5 KB\n"
    assert chaski("verify").exit_code == 0


def test_a_model_is_made_shown_and_run(root: Path, tiny_llama: Path, tmp_path: Path) -> None:
    modelfile = tmp_path / "My file"
    modelfile.write_text(
        f'FROM {tiny_llama}\nPARAMETER temperature 0\nPARAMETER num_predict 4\nPARAMETER stop "<a>"\n'
        'PARAMETER stop "b c"\nSYSTEM """be brief\n\nvery\nbrief"""\nLICENSE MIT\n'
    )
    result = chaski("create", "mine", "-f", str(modelfile))
    assert result.exit_code == 0, result.stderr
    assert result.stdout == ""
    layers = r"(creating new layer sha256:[0-9a-f]{64}\n){5}"
    assert re.fullmatch(
        rf"parsing GGUF\n(copying model\n)?{layers}writing manifest\nsuccess\n", result.stderr
    )
    before = snapshot(root)
    shown = chaski("show", "mine").output
    assert "  Model\n    name                Tiny\n" in shown
    parameters = [("num_predict", "4"), ("stop", '"<a>"'), ("stop", '"b c"'), ("temperature", "0.0")]
    assert "  Parameters\n" + "".join(f"    {key:<15}{value}\n" for key, value in parameters) in shown
    assert "  System\n    be brief\n    very\n    ...\n" in shown
    assert "  License\n    MIT\n" in shown
    assert chaski("show", "mine", "--system").output == "be brief\n\nvery\nbrief\n"
    assert chaski("show", "mine", "--license").output == "MIT\n"
    assert chaski("show", "mine", "--parameters").output.splitlines()[1] == f'{"stop":<30} "<a>"'
    answer = chaski("run", "mine", "hello")
    assert answer.exit_code == 0, answer.output
    same = ("--temperature", "0", "--num-predict", "4", "--system", "be brief\n\nvery\nbrief")
    assert answer.stdout == chaski("run", str(tiny_llama), "hello", *same).stdout
    assert snapshot(root) == before


def test_the_modelfile_makes_the_model_again(root: Path, tiny_llama: Path, tmp_path: Path) -> None:
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(
        f'FROM {tiny_llama}\nPARAMETER top_k 3\nPARAMETER stop " a"\nTEMPLATE """x\n{{{{ .Prompt }}}}"""\n'
        "SYSTEM hi\nMESSAGE user one\nMESSAGE assistant two\nLICENSE MIT\nPARSER qwen3\n"
    )
    chaski("create", "mine", "-f", str(modelfile))
    shown = chaski("show", "mine", "--modelfile").output
    assert shown.startswith('# Modelfile generated by "chaski show"\n')
    assert "# FROM mine:latest\n" in shown
    modelfile.write_text(shown)
    assert chaski("create", "again", "-f", str(modelfile)).exit_code == 0
    kinds = {
        name: {layer.kind: layer.digest for layer in Store(root).entry(ModelName.parse(name)).manifest.layers}
        for name in ("mine", "again")
    }
    assert kinds["mine"] == kinds["again"]


def test_creating_without_a_modelfile(
    root: Path, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "is a folder without a GGUF file of a model" in chaski("create", "mine").stderr
    (tmp_path / "tiny.gguf").symlink_to(tiny_llama)
    result = chaski("create", "mine", "-q", "q8_0")
    assert result.exit_code == 0, result.stderr
    assert "quantizing F32 model to Q8_0\n" in result.stderr
    assert chaski("create", "mine", "-f", "none").stderr == "Error: specified Modelfile wasn't found\n"
    assert "supported types are F32, F16" in chaski("create", "mine", "-q", "q3").stderr


def test_show_says_what_is_missing(root: Path, tiny_llama: Path) -> None:
    put_by_hand(root, f"{LIBRARY}/plain/latest", {"model": tiny_llama.read_bytes()})
    for option in ("--license", "--parameters", "--system"):
        assert chaski("show", "plain", option).stderr == f"Error: plain has no {option[2:]}\n"
    result = chaski("show", "plain", "--license", "--system")
    assert result.exit_code == 2
    assert (
        "only one of '--license', '--modelfile', '--parameters', '--system', '--template' can be"
        in result.stderr
    )


def test_there_and_back(root: Path, registry: FakeRegistry, tiny_llama: Path) -> None:
    registry.put({"model": tiny_llama.read_bytes(), "system": b"be brief"}, "me/model:1")
    name = f"http://{registry.host}/me/model:1"
    assert f"{name} cannot be pulled: insecure protocol http" in chaski("run", name, "hello").stderr
    answer = chaski("run", name, "hello", "--insecure", "--num-predict", "2")
    assert (answer.exit_code, answer.stderr.splitlines()[0]) == (0, "pulling manifest")
    chaski("rm", name)
    assert chaski("pull", name).stderr.endswith("Error: insecure protocol http\n")
    result = chaski("pull", name, "--insecure")
    assert result.exit_code == 0, result.stderr
    first, *pulling, verifying, writing, success = result.stderr.splitlines()
    assert first == "pulling manifest"
    assert len(pulling) == 3
    assert (verifying, writing, success) == ("verifying sha256 digest", "writing manifest", "success")
    assert chaski("run", f"{registry.host}/me/model:1", "hello", "--num-predict", "2").exit_code == 0
    chaski("cp", f"{registry.host}/me/model:1", f"{registry.host}/me/other:2")
    result = chaski("push", f"http://{registry.host}/me/other:2", "--insecure")
    assert result.exit_code == 0, result.stderr
    assert registry.manifests["me/other:2"] == registry.manifests["me/model:1"]
    result = chaski("pull", f"http://{registry.host}/me/none", "--insecure")
    assert result.stderr.endswith("Error: pull model manifest: file does not exist\n")


def test_a_missing_model_proposes_a_similar_one(root: Path, tiny_llama: Path) -> None:
    put_by_hand(root, f"{LIBRARY}/llama3.2/1b", {"model": tiny_llama.read_bytes()})
    question = "did you mean llama3.2:1b?"
    assert chaski("show", "llama3.2").stderr == (
        f"Error: no file 'llama3.2' and no model of that name; {question}\n"
    )
    for command in (["rm", "llama3.1:1b"], ["cp", "llama3.1:1b", "x"], ["push", "llama3.1:1b"]):
        assert chaski(*command).stderr.endswith(f"Error: model 'llama3.1:1b' not found; {question}\n")
    assert chaski("show", "gide").stderr.endswith("did you mean guide?\n")
    assert "models here: " in chaski("show", "xyzzy").stderr


def test_no_other_model_gets_the_name_of_the_guide(root: Path, tiny_llama: Path, tmp_path: Path) -> None:
    put_by_hand(root, f"{LIBRARY}/one/latest", {"model": tiny_llama.read_bytes()})
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(f"FROM {tiny_llama}")
    refusal = "is a part of chaski; choose another name for your model\n"
    for name in ("guide", "GUIDE:latest", "registry.ollama.ai/library/guide"):
        for command in (["cp", "one", name], ["create", name, "-f", str(modelfile)], ["pull", name]):
            result = chaski(*command)
            assert (result.exit_code, result.stderr) == (1, f"Error: '{name}' {refusal}")
    assert not (root / "manifests" / LIBRARY / "guide").exists()
    assert chaski("cp", "guide", "mine").exit_code == 0


def test_json_has_the_form_of_the_api(root: Path, tiny_llama: Path) -> None:
    put_by_hand(root, f"{LIBRARY}/one/latest", {"model": tiny_llama.read_bytes(), "system": b"be brief"})
    [one] = json.loads(chaski("list", "one", "--json").stdout)["models"]
    assert (one["name"], one["model"], one["size"] > 0) == ("one:latest", "one:latest", True)
    assert one.keys() == {"name", "model", "modified_at", "size", "digest", "details", "freed_bytes"}
    shown = json.loads(chaski("show", "one", "--json").stdout)
    assert shown["system"] == "be brief"
    assert shown["model_info"]["general.architecture"] == "llama"
    assert "completion" in shown["capabilities"]
    plain = json.loads(chaski("show", str(tiny_llama), "--json").stdout)
    assert plain["details"]["family"] == "llama"
    assert plain["tensors"] == shown["tensors"]
    assert "FROM one:latest" in shown["modelfile"]
    assert "leave the other option out" in chaski("show", "one", "--json", "--system").stderr
