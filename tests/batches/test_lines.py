"""Files of requests: their meaning, and errors with line numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chaski.batches.lines import check_lines, read_lines
from chaski.errors import FormatError

CHAT = "/v1/chat/completions"


def request(custom_id: str = "a", **fields: Any) -> dict[str, Any]:
    body = {"model": "guide", "messages": []}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_requests_are_read_in_order_and_blank_lines_are_none(tmp_path: Path) -> None:
    path = written(tmp_path, request("b"), "", request("a", url="/v1/embeddings"), "  ")
    assert [(line.number, line.custom_id, line.url) for line in read_lines(path)] == [
        (1, "b", CHAT),
        (3, "a", "/v1/embeddings"),
    ]
    assert list(check_lines(path)) == ["b", "a"]


def test_equal_requests_have_equal_ids(tmp_path: Path) -> None:
    other = request("c", body={"messages": [], "model": "guide"})
    ids = check_lines(written(tmp_path, request("a"), request("b", body={"model": "x"}), other))
    assert ids["a"] == ids["c"] != ids["b"]


def test_a_model_is_given_to_requests_without_one(tmp_path: Path) -> None:
    path = written(tmp_path, request(body={"messages": []}), request("b"))
    assert [line.body["model"] for line in read_lines(path, "small")] == ["small", "guide"]


def test_marks_and_line_ends_of_windows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(request()).encode() + b"\r\n")
    assert list(check_lines(path)) == ["a"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: no JSON"),
        ("[]", "line 2: a request is an object"),
        ('{"custom_id": NaN}', "line 2: no JSON"),
        (request(""), "line 2: custom_id must be a text of 1 to 512"),
        (request(custom_id=5), "line 2: custom_id must be a text"),
        (request("a\ud800"), "line 2: custom_id has half of a surrogate pair"),
        (request("first"), "line 2: an earlier line has the custom_id 'first', too"),
        (request(method="GET"), "line 2: method must be POST, not GET"),
        (request(url="/api/delete"), "line 2: url must be one of /v1/chat/completions"),
        (request(body=[]), "line 2: body must be an object"),
        (request(body={"model": "guide", "stream": True}), "line 2: answers of a batch cannot be streamed"),
        (request(body={"messages": []}), "line 2: the body names no model; give one for all such lines"),
    ],
    ids=str,
)
def test_lines_that_are_no_requests_are_named(tmp_path: Path, line: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        check_lines(written(tmp_path, request("first"), line))


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="it has no requests"):
        check_lines(written(tmp_path, ""))
