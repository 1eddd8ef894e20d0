"""A pipe or a device that a user names as a file is refused at once, by every reader of files."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chaski
from chaski.batches.lines import check_lines
from chaski.batches.results import Results
from chaski.chat.images import image_bytes
from chaski.cli.session import _read_image
from chaski.cli.tools import read_tools
from chaski.cluster_key import read_key
from chaski.convert.config import read_json
from chaski.convert.tokenizer.sentencepiece_model import read_model
from chaski.formats.adapter import open_adapter
from chaski.formats.gguf import open_gguf
from chaski.formats.safetensors import open_checkpoint, open_safetensors
from chaski.regular_files import read_regular
from chaski.runner.prefix.block_files import opened
from chaski.store.identity import Identity

READERS: dict[str, Callable[[Path], Any]] = {
    "gguf": open_gguf,
    "adapter": open_adapter,
    "safetensors": open_safetensors,
    "index": lambda path: open_checkpoint(path.parent),
    "json": read_json,
    "sentencepiece": read_model,
    "load": chaski.load,
    "projector": lambda path: chaski.load("guide", projector=path),
    "image": image_bytes,
    "image of the command line": _read_image,
    "tools": read_tools,
    "batch": check_lines,
    "results": lambda path: Results.open(path).__enter__(),
    "key of nodes": lambda path: read_key(str(path)),
    "key of registries": Identity.of_user,
    "block": opened,
}


@pytest.mark.parametrize("kind", ["fifo", "device"])
@pytest.mark.parametrize("reader", READERS)
def test_readers_refuse_what_is_no_file(tmp_path: Path, reader: str, kind: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    results: list[object] = []

    def read() -> None:
        try:
            results.append(READERS[reader](path))
        except (chaski.ChaskiError, OSError) as error:
            results.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(20)
    (found,) = results
    expected = OSError if reader == "block" else chaski.ChaskiError
    assert isinstance(found, expected), found
    assert "regular file" in str(found) or "no file" in str(found) or "does not exist" in str(found)


def test_open_descriptors_are_read(tmp_path: Path) -> None:
    """It tests the names that shells use for a command's output and standard input."""
    source, target = os.pipe()
    os.write(target, b"words")
    os.close(target)
    assert read_regular(Path(f"/dev/fd/{source}")) == b"words"
    os.close(source)
