"""`chaski convert` writes and reads GGUF files in several parts."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chaski.cli.main import chaski_command
from chaski.convert.convert import convert
from chaski.formats.gguf import open_gguf
from tests.convert.checkpoints import DATA


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(chaski_command, ["convert", *map(str, arguments)])


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """Convert a checkpoint to parts of 40 kB."""
    summary = convert(DATA / "llama3", tmp_path / "m.gguf", "F32", split_max_size=40_000)
    return list(summary.paths)


def test_parts_are_the_whole_file(tmp_path: Path, parts: list[Path]) -> None:
    assert len(parts) > 2
    convert(DATA / "llama3", tmp_path / "whole.gguf", "F32")
    with open_gguf(parts[1]) as found, open_gguf(tmp_path / "whole.gguf") as wanted:
        assert {key: bytes(each.data) for key, each in found.tensors.items()} == {
            key: bytes(each.data) for key, each in wanted.tensors.items()
        }
        assert found.metadata.keys() - wanted.metadata.keys() == {
            "split.no",
            "split.count",
            "split.tensors.count",
        }


def test_parts_are_joined_to_the_bytes_of_the_whole_file(tmp_path: Path, parts: list[Path]) -> None:
    result = run(parts[-1], tmp_path / "joined.gguf")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"{tmp_path / 'joined.gguf'}: 21 tensors, ")
    convert(DATA / "llama3", tmp_path / "whole.gguf", "F32")
    assert (tmp_path / "joined.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_the_command_names_the_first_and_the_last_part(tmp_path: Path, parts: list[Path]) -> None:
    result = run(DATA / "llama3", tmp_path / "x.gguf", "--split-max-size", "40kB", "--type", "F32")
    last = f"x-{len(parts):05d}-of-{len(parts):05d}.gguf"
    assert result.output.startswith(f"{tmp_path / 'x-00001'}-of-{len(parts):05d}.gguf to {last}: llama, ")
    again = run(tmp_path / last, tmp_path / "y.gguf", "--split-max-size", "20kB")
    assert f"to y-{len(list(tmp_path.glob('y-*'))):05d}-of-" in again.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--type", "F16"), "is a GGUF file, whose tensors stay as they are; leave out --type"),
        (("--task", "x"), "leave out --task"),
        (("--split-max-size", "0"), "a part must have room for tensors"),
        (("--split-max-size", "4 parsecs"), "not a size such as 500MB"),
    ],
)
def test_what_a_gguf_file_cannot_become(
    tmp_path: Path, parts: list[Path], arguments: tuple[str, ...], message: str
) -> None:
    result = run(parts[0], tmp_path / "y.gguf", *arguments)
    assert result.exit_code != 0
    assert message in result.output + str(result.exception)
    assert not list(tmp_path.glob("y*"))
