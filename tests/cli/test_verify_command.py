"""`chaski verify` with receipts: in files of each kind, true and false ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import chaski
from chaski.cli.main import chaski_command
from chaski.receipts.receipt import Receipt
from chaski.receipts.signing import server_key, shown_key, signed
from chaski.store.store import Store

TEXT = "What is a chaski?"


@pytest.fixture(scope="module")
def receipt() -> Receipt:
    """Return the receipt of an answer of the bundled model."""
    with chaski.load("guide") as model:
        found = model.generate(TEXT, num_predict=12, seed=1, ignore_eos=True, receipt=True).receipt
    assert found is not None
    return found


def verify(*arguments: object, given: str | None = None) -> Result:
    return CliRunner().invoke(chaski_command, ["verify", *map(str, arguments)], input=given)


def words(text: str) -> str:
    return " ".join(text.split())


def write(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def test_a_true_receipt(receipt: Receipt, tmp_path: Path) -> None:
    file = write(tmp_path / "r.json", receipt.fields())
    found = verify(file)
    assert found.output == f"{file}: same: 12 of 12 steps compared, not signed\n"
    assert found.exit_code == 0
    assert "5 of 12 steps compared" in verify(file, "--sample", 5, "--model", "guide").output
    assert "-: same" in verify("-", given=json.dumps(receipt.fields(), indent=1)).output
    assert "same: 12 of 12" in verify(file, "--reference").output


def test_a_false_receipt(receipt: Receipt, tmp_path: Path) -> None:
    changed = json.loads(receipt.text())
    changed["output"][5] += 1
    found = verify(write(tmp_path / "r.json", changed))
    assert found.exit_code == 1
    token = receipt.output[5]
    assert f"step 5 differs: the receipt has token {token + 1}, found token {token}" in found.output
    assert "1 of 1 receipts are false" in found.output


def test_keys(receipt: Receipt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    key = verify("--public-key").output.strip()
    assert key == shown_key(server_key(Store(tmp_path)))
    file = write(tmp_path / "r.json", signed(receipt, server_key(Store(tmp_path))).fields())
    assert f"signed by {key}" in verify(file, "--key", key).output
    assert verify(file, "--key", tmp_path / "chaski" / "receipt_key.pub").exit_code == 0
    other = shown_key(server_key(Store(tmp_path / "other")))
    found = verify(file, "--key", other)
    assert found.exit_code == 1
    assert f"signature.key differs: the receipt has {key}, found {other}" in found.output


def test_a_prompt_that_is_left_out(receipt: Receipt, tmp_path: Path) -> None:
    file = write(tmp_path / "r.json", receipt.without_prompt().fields())
    assert "give the prompt" in words(verify(file).output)
    (tmp_path / "prompt.txt").write_text(TEXT)
    assert verify(file, "--prompt", tmp_path / "prompt.txt").exit_code == 0
    (tmp_path / "prompt.txt").write_text("another text")
    assert "prompt.digest differs" in verify(file, "--prompt", tmp_path / "prompt.txt").output


def test_a_batch_with_receipts(tmp_path: Path) -> None:
    body = {"model": "guide", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}
    lines = [
        {"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": {**body, "n": n + 1}}
        for n in range(2)
    ]
    refusing = {**lines[0], "custom_id": "none", "body": {**body, "receipt": False}}
    requests = write(tmp_path / "requests.jsonl", *lines, refusing)
    results = tmp_path / "results.jsonl"
    made = CliRunner().invoke(chaski_command, ["batch", "--receipts", str(requests), "-o", str(results)])
    assert made.exit_code == 0, made.output
    found = verify(results)
    assert found.exit_code == 0, found.output
    assert found.output.count("same: 6 of 6 steps compared, signed by") == 3


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([{}], "contains no receipt"),
        ([{"receipt": {"format": "other"}}], "is no receipt of format"),
        ([{"choices": [1, {"receipt": 3}]}], "is no receipt"),
        ([{"body": []}, {"response": {"receipt": []}}], "line 2 is no receipt"),
    ],
)
def test_files_without_receipts(tmp_path: Path, values: list[Any], problem: str) -> None:
    found = verify(write(tmp_path / "r.json", *values))
    assert found.exit_code == 1
    assert problem in words(found.output)


def test_a_model_is_never_chosen_by_path(receipt: Receipt, tmp_path: Path) -> None:
    changed = json.loads(receipt.text())
    changed["model"]["files"] = ["0" * 64]
    found = verify(write(tmp_path / "r.json", changed))
    assert "no stored model has the file 000000000000" in words(found.output)
    found = verify(tmp_path / "r.json", "--model", "guide")
    assert "model.files[0] differs" in found.output
    assert verify("--model", "guide").exit_code == 2
    assert "There is no file 'missing.json'" in verify("missing.json", "--model", "guide").output
