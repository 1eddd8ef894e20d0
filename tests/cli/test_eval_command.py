"""`chaski eval` as users run it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.formats.quant import QuantType
from chaski.progress_bar import ProgressBar
from tests.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.usefixtures("own_store")
TEXT = "the inn in the other end, then an inner one. " * 8


def chaski(*arguments: object, **options: object) -> Result:
    return CliRunner().invoke(chaski_command, ["eval", *map(str, arguments)], **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("evaluated")
    text = folder / "text.txt"
    text.write_text(TEXT)
    kinds = QuantType.Q8_0, QuantType.F32
    return [text, *(write_tiny_llama(folder / f"{kind.name}.gguf", matrices=kind) for kind in kinds)]


def test_perplexity_of_a_text(files: list[Path]) -> None:
    text, model, _ = files
    shown = chaski(model, text, "--context", 32)
    assert shown.exit_code == 0, shown.output
    assert "  Q8_0.gguf on " in shown.stdout
    assert "tokens in 7 chunk(s) of 32" in shown.stdout
    found = json.loads(chaski(model, "-", "--context", 32, "--json", input=TEXT).stdout)
    assert found["chunks"] == 7
    assert found["tokens"] == 7 * 15
    assert found["comparison"] is None
    assert math.isfinite(found["perplexity"]["error"])
    assert (
        f"perplexity    {found['perplexity']['value']:.4f} ± {found['perplexity']['error']:.4f}"
        in shown.stdout
    )


def test_comparison_with_a_reference(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text, model, reference = files
    picture = tmp_path / "divergence.svg"
    asked = (model, text, "--against", reference, "--context", 32)
    shown = chaski(*asked, "--plot", picture)
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "Against F32.gguf" in shown.stdout
    assert "same top token" in shown.stdout
    words = [str(each.text) for each in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"7 chunk(s)", "largest", "50 %", "smallest"} <= set(words)
    found = json.loads(chaski(*asked, "--json").stdout)["comparison"]
    assert 0 < found["divergence"]["value"] < found["divergences"]["100"]
    assert 0 < found["agreement"]["value"] <= 1


def test_ctrl_c_keeps_finished_chunks(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    text, model, _ = files
    details: list[str] = []
    ends = ["chunk 3"]

    class Noted(ProgressBar):
        def __call__(self, share: float, detail: str = "") -> None:
            if detail:
                details.append(detail)
            if ends and detail.startswith(ends[0]):
                ends.clear()
                raise KeyboardInterrupt

    monkeypatch.setattr("chaski.progress_bar.ProgressBar", Noted)
    stopped = chaski(model, text, "--context", 32)
    assert stopped.exit_code == 130
    assert stopped.stderr == "Stopped after 3 of 7 chunks; run the command again to continue\n"
    assert any(detail.startswith("chunk 2 of 7, perplexity ") for detail in details)
    details.clear()
    asked = (model, text, "--context", 32, "--json")
    continued = chaski(*asked)
    assert details[0].startswith("chunk 3 of 7")
    assert continued.stderr == "Continued after 3 of 7 chunks\n"
    assert "--restart measures again" in chaski(*asked).stderr
    assert continued.stdout == chaski(*asked).stdout == chaski(*asked, "--restart").stdout


def test_errors_name_what_to_do(files: list[Path], tmp_path: Path) -> None:
    text, model, _ = files
    other = write_tiny_llama(tmp_path / "other.gguf", tokenizer__ggml__add_bos_token=False)
    refused = chaski(model, text, "--against", other, "--context", 32)
    assert "split the text into different tokens" in " ".join(refused.stderr.split())
    missing = chaski(model, tmp_path / "none.txt")
    assert "none.txt cannot be read: No such file or directory" in " ".join(missing.stderr.split())
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    binary = chaski(model, tmp_path / "latin.txt")
    assert "is not a text in UTF-8: byte 3 is 0xe9" in " ".join(binary.stderr.split())
    short = chaski(model, "-", input="the")
    assert "the text has 2 tokens" in short.stderr
    assert {short.exit_code, binary.exit_code, missing.exit_code, refused.exit_code} == {1}
