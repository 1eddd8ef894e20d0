"""Addresses of servers in the forms of `OLLAMA_HOST`."""

from __future__ import annotations

import pytest

from chaski.address import Address
from chaski.errors import OptionError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:11434", Address("127.0.0.1", 11434)),
        ("", Address("127.0.0.1", 11434)),
        (":5000", Address("127.0.0.1", 5000)),
        ("example.org", Address("example.org", 11434)),
        ("http://example.org", Address("example.org", 80)),
        ("https://example.org/sub/", Address("example.org", 443, "https", "sub")),
        ("[::1]:90", Address("::1", 90)),
        ("::1", Address("::1", 11434)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["ftp://x", "x:port", "x:99999"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="OLLAMA_HOST"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("0.0.0.0:90", "http://127.0.0.1:90"),
        ("[::]:90", "http://[::1]:90"),
        ("https://example.org/sub/", "https://example.org:443/sub"),
    ],
)
def test_the_url_is_one_that_a_client_can_call(text: str, url: str) -> None:
    assert Address.parse(text).url == url
