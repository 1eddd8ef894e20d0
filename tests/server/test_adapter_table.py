"""`AdapterTable`: names, numbers and scales of adapters, and the one folder that they come from."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from chaski.errors import AdapterNotFoundError, ModelNotFoundError, OptionError, UnsupportedError
from chaski.names import ModelName
from chaski.server.models import adapter_table
from chaski.server.models.adapter_table import AdapterTable, ChosenAdapter

BASE, WEIGHTS = ModelName.parse("base"), Path("/weights")


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return what is given to the process that checks adapters, which is not started."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(adapter_table, "prepare_adapter", lambda *given: found.append(given))
    return found


@pytest.fixture
def folder(tmp_path: Path, checked: list[tuple[Any, ...]]) -> Path:
    """Make a folder with adapters, and files beside it that it must not lead to."""
    folder = tmp_path / "lora"
    (folder / "deep" / "peft").mkdir(parents=True)
    for path in (folder / "a.gguf", folder / "b.gguf", folder / "deep" / "c.gguf", tmp_path / "secret.gguf"):
        path.write_bytes(b"")
    (folder / "link.gguf").symlink_to(tmp_path / "secret.gguf")
    (folder / "inside.gguf").symlink_to(folder / "a.gguf")
    (tmp_path / "lora-of-others").mkdir()
    (tmp_path / "lora-of-others" / "d.gguf").write_bytes(b"")
    return folder


def add(table: AdapterTable, name: str, given: str = "a.gguf", **more: Any) -> Any:
    return table.add(name, given, more.pop("base", BASE), more.pop("weights", WEIGHTS), **more)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("a.gguf", "a.gguf"),
        ("./deep/../b.gguf", "b.gguf"),
        ("deep/c.gguf", "deep/c.gguf"),
        ("inside.gguf", "a.gguf"),
    ],
)
def test_files_of_the_folder_are_found(
    folder: Path, checked: list[tuple[Any, ...]], given: str, found: str
) -> None:
    adapter = add(AdapterTable(folder), "x", given)
    assert adapter.path == folder / found
    assert checked == [(folder / found, folder / found, WEIGHTS, Path(given).name)]
    assert add(AdapterTable(folder), "x", str(folder / found)).path == folder / found


@pytest.mark.parametrize(
    "given",
    [
        "../secret.gguf",
        "deep/../../secret.gguf",
        "../lora-of-others/d.gguf",
        "link.gguf",
        "missing.gguf",
        "/etc/passwd",
        "a\0b",
        "x" * 5000,
    ],
)
def test_no_path_leads_out_of_the_folder(folder: Path, checked: list[tuple[Any, ...]], given: str) -> None:
    table = AdapterTable(folder)
    name = Path(given).name
    with pytest.raises(ModelNotFoundError) as error:
        add(table, "x", given)
    assert str(error.value) == f"there is no adapter {name!r:.200} in the folder of adapters"
    assert not checked
    assert not table.all


def test_a_folder_reached_by_a_link_is_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to(folder)
    assert add(AdapterTable(tmp_path / "shortcut"), "x").path == folder / "a.gguf"


def test_without_a_folder_there_are_none(folder: Path) -> None:
    message = "this server loads no adapters by path; set CHASKI_ADAPTERS to the folder that contains them"
    for given in ("a.gguf", str(folder / "a.gguf")):
        with pytest.raises(UnsupportedError, match=f"^{message}$"):
            add(AdapterTable(), "x", given)


@pytest.mark.parametrize("name", ["a", "A-1_b.c/d", "_", "x" * 128])
def test_names_that_can_be(folder: Path, name: str) -> None:
    assert add(AdapterTable(folder), name).name == name


@pytest.mark.parametrize("name", ["", "x" * 129, "a..b", "../a", "/a", ".a", "-a", "a b", "a:b", "ä", "a\n"])
def test_names_that_cannot_be(folder: Path, checked: list[tuple[Any, ...]], name: str) -> None:
    with pytest.raises(OptionError) as error:
        add(AdapterTable(folder), name)
    assert str(error.value) == f"lora_name may only contain letters, digits and '._-/': {name!r:.100}"
    assert not checked


def test_a_name_is_taken_until_it_is_free(
    folder: Path, checked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = AdapterTable(folder)
    monkeypatch.setattr(time, "time", lambda: 1.0)
    first = add(table, "x")
    assert (first.number, first.base, first.weights, first.scale, first.created) == (
        0,
        BASE,
        WEIGHTS,
        0.0,
        1.0,
    )
    with pytest.raises(OptionError) as error:
        add(table, "x", "b.gguf")
    assert str(error.value) == (
        "The lora adapter 'x' has already been loaded. If you want to load the adapter in place, "
        "set 'load_inplace' to True."
    )
    assert len(checked) == 1  # a file for a taken name is not even read
    other = add(table, "y")
    monkeypatch.setattr(time, "time", lambda: 2.0)
    again = add(table, "x", "b.gguf", replaces=True)
    assert (again.number, again.path, other.number) == (0, folder / "b.gguf", 1)
    assert first.chosen().key != again.chosen().key  # the process of the model loads the other file
    assert again.chosen(0.5) == ChosenAdapter("x", "x@2.0", folder / "b.gguf", 0.5)
    assert again.chosen().scale == 1.0
    assert table.all == [again, other]
    assert table.remove("x") is again
    assert table.all == [other]
    assert add(table, "x").number == 2
    for name in ("z", "X"):
        with pytest.raises(AdapterNotFoundError, match=rf"^The lora adapter '{name}' cannot be found\.$"):
            table.remove(name)


def test_a_name_taken_meanwhile_is_not_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = AdapterTable(folder)

    def prepare(*given: Any) -> None:
        if not table.all:
            monkeypatch.setattr(adapter_table, "prepare_adapter", lambda *given: None)
            add(table, "x", "b.gguf")

    monkeypatch.setattr(adapter_table, "prepare_adapter", prepare)
    with pytest.raises(OptionError, match="has already been loaded"):
        add(table, "x")
    assert [each.path.name for each in table.all] == ["b.gguf"]


def test_an_adapter_that_does_not_fit_gets_no_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(*given: Any) -> None:
        raise OptionError("it does not fit")

    monkeypatch.setattr(adapter_table, "prepare_adapter", prepare)
    table = AdapterTable(folder)
    with pytest.raises(OptionError, match="it does not fit"):
        add(table, "x")
    assert table.find("x") is None


def test_a_table_has_room_for_1024(folder: Path) -> None:
    table = AdapterTable(folder)
    for number in range(1024):
        add(table, f"x{number}")
    with pytest.raises(OptionError, match=r"^there are 1024 adapters already; unload some$"):
        add(table, "one-more")
    table.remove("x7")
    assert add(table, "one-more").number == 1024


def test_labels_of_requests(folder: Path) -> None:
    table = AdapterTable(folder)
    found = add(table, "x", base=ModelName.parse("some/base:small"))
    for label in ("x", "some/base:small:x"):
        assert table.find(label) is found
    for label in ("", ":x", "other:x", "some/base:x", "some/base:small:y", "some/base:small", "b@d n@me:x"):
        assert table.find(label) is None
    plain = add(table, "y")
    assert table.find("base:y") is table.find("base:latest:y") is plain


def test_each_model_has_its_own_adapters(folder: Path) -> None:
    table, others = AdapterTable(folder), Path("/others")
    for name, weights in (("a", WEIGHTS), ("b", others), ("c", WEIGHTS)):
        add(table, name, weights=weights)
    assert [each.name for each in table.of(WEIGHTS)] == ["a", "c"]
    assert [each.name for each in table.of(others)] == ["b"]
    assert table.numbered(1, others).name == "b"
    for number, weights in ((1, WEIGHTS), (3, WEIGHTS), (-1, others)):
        with pytest.raises(AdapterNotFoundError) as error:
            table.numbered(number, weights)
        assert str(error.value) == f"this model has no adapter {number}; see /lora-adapters"


def test_scales_that_are_not_named_are_zero(folder: Path) -> None:
    table = AdapterTable(folder)
    for name in "abc":
        add(table, name)
    table.set_scales({0: 0.5, 2: -1.0})
    assert [each.scale for each in table.all] == [0.5, 0.0, -1.0]
    with pytest.raises(AdapterNotFoundError, match=r"^there is no adapter 3; see /lora-adapters$"):
        table.set_scales({1: 1.0, 9: 1.0, 3: 1.0})
    assert [each.scale for each in table.all] == [0.5, 0.0, -1.0]
    table.set_scales({1: 2.0})
    assert [each.scale for each in table.all] == [0.0, 2.0, 0.0]


def test_converted_files_end_with_the_server(folder: Path, checked: list[tuple[Any, ...]]) -> None:
    table = AdapterTable(folder)
    paths = [add(table, name, "deep/peft").path for name in "ab"]
    assert len(set(paths)) == 2
    assert [made for _, made, *_ in checked] == paths
    assert {given for given, *_ in checked} == {folder / "deep" / "peft"}
    for path in paths:
        assert path.name.startswith("peft-")
        assert path.suffix == ".gguf"
        assert len(path.name) == len("peft-.gguf") + 16
        assert not path.is_relative_to(folder)
    (private,) = {path.parent for path in paths}
    assert private.name.startswith("chaski-adapters-")
    assert private.stat().st_mode & 0o777 == 0o700
    paths[0].write_bytes(b"")
    table.close()
    assert not os.path.exists(private)
    AdapterTable(folder).close()


def test_adapters_of_the_store_are_chosen_by_their_blobs() -> None:
    path = Path("/blobs/sha256-0123")
    assert ChosenAdapter.stored(path) == ChosenAdapter("sha256-0123", "sha256-0123", path, 1.0)
    assert ChosenAdapter.stored(path, 0.5).scale == 0.5
