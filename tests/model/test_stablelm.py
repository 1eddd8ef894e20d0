"""StableLM's files, and configurations that do not say whether the blocks of a layer are parallel."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import chaski
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from chaski.formats.gguf_writer import write_gguf
from tests import families

VARIANT = "stablelm/usual"  # its blocks are not parallel


def logits(path: Path) -> object:
    with chaski.load(path, context=64, threads=1) as model:
        return model.logits(list(range(20)))


def test_a_second_norm_counts_more_than_a_key_that_says_parallel(tmp_path: Path) -> None:
    with open_gguf(families.converted(VARIANT)) as file:
        tensors = {name: (info.data.view(np.float32), info.type) for name, info in file.tensors.items()}
        shaped = {
            name: (array.reshape(file.tensors[name].shape), type) for name, (array, type) in tensors.items()
        }
        metadata = {**file.metadata, "stablelm.use_parallel_residual": True}
        write_gguf(tmp_path / "parallel.gguf", metadata, shaped)
    found, wanted = logits(tmp_path / "parallel.gguf"), logits(families.converted(VARIANT))
    np.testing.assert_array_equal(found, wanted)


def test_a_configuration_without_the_setting(tmp_path: Path) -> None:
    known = families.expected(VARIANT)
    config = {key: value for key, value in known["config"].items() if key != "use_parallel_residual"}
    families.checkpoint(tmp_path, config, known["tensors"], known["seed"])
    convert(tmp_path, tmp_path / "model.gguf", "F32")
    with open_gguf(tmp_path / "model.gguf") as file:
        assert file.metadata["stablelm.use_parallel_residual"] is False
    np.testing.assert_array_equal(logits(tmp_path / "model.gguf"), logits(families.converted(VARIANT)))
