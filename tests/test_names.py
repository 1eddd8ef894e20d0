from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaski.errors import OptionError
from chaski.names import Digest, ModelName

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "full", "short"),
    [
        ("llama3.2", "registry.ollama.ai/library/llama3.2:latest", "llama3.2:latest"),
        ("llama3.2:1b", "registry.ollama.ai/library/llama3.2:1b", "llama3.2:1b"),
        ("me/model", "registry.ollama.ai/me/model:latest", "me/model:latest"),
        ("hf.co/Me_1/My-GGUF:Q4_K_M", "hf.co/Me_1/My-GGUF:Q4_K_M", "hf.co/Me_1/My-GGUF:Q4_K_M"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000/a/b:latest"),
        ("localhost:5000/library/b:c", "localhost:5000/library/b:c", "localhost:5000/library/b:c"),
        ("http://[x", None, None),
        ("_a/_b/_c:_d", "_a/_b/_c:_d", "_a/_b/_c:_d"),
    ],
)  # fmt: skip
def test_names(text: str, full: str | None, short: str | None) -> None:
    if full is None or short is None:
        with pytest.raises(OptionError, match="invalid model name"):
            ModelName.parse(text)
        return
    name = ModelName.parse(text)
    assert (str(name), name.short) == (full, short)
    assert ModelName.parse(full) == ModelName.parse(short) == name


def test_the_scheme_is_no_part_of_the_name() -> None:
    plain, web = ModelName.parse("host/a/b"), ModelName.parse("http://host/a/b")
    assert plain == web
    assert (plain.scheme, web.scheme) == ("https", "http")


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "a:", ":b", "/", "a/", "/a", "a//b", "a/b/c/d", "..", "../a", "a/../b", "../../etc/passwd",
        ".a",
        "a:.b", "a:..", "a/.b/c", "a:b:c", "a b", "a\n", "a\x00", "a@sha256:" + HEX, "-a", "a/b.c/d",
        "ftp://a/b/c",
        "://a", "a\\b", "é", "%2e%2e/a", "a:b/c", "x" * 81, "x:" + "y" * 81, "h" * 351 + "/a/b", "~/a", "a/~",
    ],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(OptionError, match=r"^invalid model name"):
        ModelName.parse(text)


@given(st.text(alphabet="aZ0_.-:/ \\%~@\x00é", max_size=20))
def test_a_name_is_four_plain_folders(text: str) -> None:
    try:
        name = ModelName.parse(text)
    except OptionError:
        return
    assert all(part and part not in (".", "..") and not set(part) & set("/\\\x00 ") for part in name.parts)
    assert ModelName.parse(str(name)) == name


def test_digests() -> None:
    digest = Digest.parse("sha256:" + HEX)
    assert digest == Digest.parse("sha256-" + HEX) == Digest(HEX)
    assert str(digest) == "sha256:" + HEX
    assert digest.file_name == "sha256-" + HEX
    assert digest.short == "0123456789ab"


@pytest.mark.parametrize(
    "text",
    ["", HEX, "sha256:", "sha256:" + HEX[1:], "sha256:" + HEX + "0", "sha256:" + HEX.upper(), "sha512:" + HEX,
     "sha256:../" + HEX[3:], "sha256:" + HEX + "\n", "sha256-" + HEX + "/..", " sha256:" + HEX],
)  # fmt: skip
def test_what_is_no_digest(text: str) -> None:
    with pytest.raises(OptionError, match=re.escape("invalid digest format")):
        Digest.parse(text)


@pytest.mark.parametrize("text", ["", HEX[1:], HEX.upper(), "../" + HEX[3:], HEX + "\n"])
def test_a_digest_of_other_digits(text: str) -> None:
    with pytest.raises(OptionError, match="invalid digest format"):
        Digest(text)
