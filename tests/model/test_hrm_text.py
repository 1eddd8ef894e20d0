"""HRM-Text: a file counts the layers of all passes, and has those of two stacks."""

from __future__ import annotations

from pathlib import Path

import pytest

import chaski
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from tests.families import converted
from tests.rewriting import all_tensors


def test_another_number_of_layers_is_refused(tmp_path: Path) -> None:
    with open_gguf(converted("hrm_text/usual")) as file:
        metadata = {**file.metadata, "hrm_text.hrm.h_cycles": 3}
        write_gguf(tmp_path / "other.gguf", metadata, dict(all_tensors(file)))
    message = r"block_count = 16 is not .*2 layers_per_stack · 3 h_cycles · \(3 l_cycles \+ 1\)"
    with pytest.raises(chaski.ChaskiError, match=message):
        chaski.load(tmp_path / "other.gguf")
