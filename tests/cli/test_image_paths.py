from __future__ import annotations

from pathlib import Path

import pytest

from chaski.cli.image_paths import find_images

NAMES = ("cat.png", "two words.jpg", "a'b (1).WEBP", "é.gif", "dot.v1.bmp", "sub/cat.jpeg", "plain.txt")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home" / "inner"
    (home / "sub").mkdir(parents=True)
    for name in NAMES:
        (home / name).touch()
    (home.parent / "up.png").touch()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.mark.parametrize(
    ("text", "left", "names"),
    [
        ("what is in ./cat.png?", "what is in ?", ["cat.png"]),
        ("./cat.png describe", "describe", ["cat.png"]),
        ("'./cat.png' and \"./two words.jpg\"", "and", ["cat.png", "two words.jpg"]),
        (r"compare ./two\ words.jpg with ./cat.png.", "compare  with .", ["two words.jpg", "cat.png"]),
        ("see ./two words.jpg now", "see  now", ["two words.jpg"]),
        (r"./a\'b\ \(1\).WEBP", "", ["a'b (1).WEBP"]),
        ("~/é.gif", "", ["é.gif"]),
        ("../up.png ./sub/cat.jpeg", "", ["../up.png", "sub/cat.jpeg"]),
        ("./dot.v1.bmp", "", ["dot.v1.bmp"]),
        ("a / b: ./cat.png", "a / b:", ["cat.png"]),
        ("./cat.png ./cat.png", "", ["cat.png", "cat.png"]),
        ("first\n./cat.png\nlast", "first\n\nlast", ["cat.png"]),
    ],
)
def test_images_are_found_and_taken_out(folder: Path, text: str, left: str, names: list[str]) -> None:
    found = find_images(text)
    assert (found.text, found.missing) == (left, ())
    assert [path.resolve() for path in found.files] == [(folder / name).resolve() for name in names]


def test_absolute_paths(folder: Path) -> None:
    found = find_images(f"{folder}/cat.png and '{folder}/two words.jpg'")
    assert (found.text, found.files) == ("and", (folder / "cat.png", folder / "two words.jpg"))


@pytest.mark.parametrize(
    "text",
    [
        "cat.png is a name",
        "hello",
        "",
        "./plain.txt",
        "https://example.org/cat.png",
        "src/img/cat.png",
        "./cat.pngs",
        "./cat.\npng",
        "either/or",
    ],
)
def test_other_text_stays(folder: Path, text: str) -> None:
    found = find_images(text)
    assert (found.text, found.files, found.missing) == (text, (), ())


def test_a_long_line_of_slashes_is_no_path(folder: Path) -> None:
    text = "/a.png" * 20_000
    assert find_images(text).text == text


def test_paths_of_nothing_are_told(folder: Path) -> None:
    found = find_images("is ./dog.png like ./cat.png or '/no/such\\ one.jpg'?")
    assert found.missing == ("./dog.png", "/no/such\\ one.jpg")
    assert found.text == "is ./dog.png like  or '/no/such\\ one.jpg'?"
    assert found.files == (Path("cat.png"),)
