"""LoRA adapters named by `--adapter`: their files and the table that describes them."""

from __future__ import annotations

import atexit
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from chaski.cli.layout import section, size_in_bytes

if TYPE_CHECKING:
    from chaski.formats.adapter import AdapterFile

__all__ = ["adapter_files", "adapter_section", "read_adapters", "shown_adapter"]


def read_adapters(given: Sequence[str]) -> list[tuple[str, float]]:
    """Parse the values of `--adapter`: a path or a name each, optionally followed by `=SCALE`.

    Raises OptionError."""
    from chaski.chat.adapter_choices import adapter_choices

    pairs = []
    for text in given:
        label, mark, scale = text.rpartition("=")
        try:
            pairs.append((label, float(scale)) if mark and not Path(text).exists() else (text, 1.0))
        except ValueError:
            pairs.append((text, 1.0))
    return [(choice.name, choice.scale) for choice in adapter_choices(pairs)]


def adapter_files(labels: Sequence[str], base: Path) -> dict[str, Path]:
    """Return the GGUF file of each adapter by the label the user gave.

    PEFT folders are converted to temporary files, which are removed when the process exits.

    base: the GGUF file of the model. Raises ModelNotFoundError, OptionError and conversion errors.
    """
    from chaski.convert.adapter import is_adapter
    from chaski.model.file_dialects import open_model
    from chaski.store.adapter_files import convert_folder

    found = {}
    for label in labels:
        path = Path(label).expanduser()
        if path.is_dir() and is_adapter(path):
            folder = TemporaryDirectory(prefix="chaski-")
            atexit.register(folder.cleanup)
            made = Path(folder.name) / "adapter.gguf"
            convert_folder(path, made, base, open_model)
            path = made
        found[label] = path if path.is_file() else _stored(label)
    return found


def _stored(label: str) -> Path:
    """Return the adapter of a stored model."""
    from chaski.errors import ModelNotFoundError, OptionError
    from chaski.names import is_path
    from chaski.store.model import find_model

    if is_path(label):
        raise ModelNotFoundError(f"{label}: no such adapter: it is neither a file nor a PEFT folder")
    adapters = find_model(label).adapters
    if len(adapters) != 1:
        count = f"{len(adapters)} adapters; name their files" if adapters else "no adapter"
        raise OptionError(f"{label} has {count}")
    return adapters[0]


def adapter_section(path: Path) -> str:
    """Return a table that describes an adapter file."""
    from chaski.formats.adapter import open_adapter

    with open_adapter(path) as adapter:
        return section("Adapter", shown_adapter(adapter))


def shown_adapter(adapter: AdapterFile) -> Iterator[tuple[str, object]]:
    """Yield the rows of that table."""
    yield "architecture", adapter.architecture
    yield "rank", adapter.rank
    yield "alpha", f"{adapter.alpha:g}"
    yield "matrices", len(adapter.tensors)
    infos = [info for pair in adapter.tensors.values() for info in pair]
    yield "types", ", ".join(dict.fromkeys(info.type.name for info in infos))
    yield "size", size_in_bytes(sum(info.nbytes for info in infos))
