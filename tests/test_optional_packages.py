"""Optional packages may be missing; the error names the package to install."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from chaski.errors import MissingPackageError
from chaski.image.files import open_image
from chaski.server.telemetry.otlp import open_export
from chaski.store.ed25519 import public_key, sign
from chaski.text.tokenizer import Tokenizer, load_tokenizer
from tests.text.test_wordpiece import tokenizer as wordpiece
from tests.text.token_fixtures import unigram_metadata

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def load_unigram() -> Tokenizer:
    return load_tokenizer(unigram_metadata())


PNG = b"\x89PNG\r\n\x1a\n" + bytes(32)

WORK = {
    "an image": ("PIL", "pillow", "images", lambda: open_image(PNG)),
    "WordPiece": ("tokenizers", "tokenizers", "embeddings", lambda: wordpiece().encode("a")),
    "unigram": ("tokenizers", "tokenizers", "embeddings", lambda: load_unigram().encode("a")),
    "a public key": ("cryptography", "cryptography", "keys", lambda: public_key(bytes(32))),
    "a signature": ("cryptography", "cryptography", "keys", lambda: sign(bytes(32), b"")),
    "spans": (
        "opentelemetry",
        "opentelemetry-exporter-otlp-proto-http",
        "tracing",
        lambda: open_export("http://127.0.0.1:4318/v1/traces"),
    ),
}


@pytest.mark.parametrize("work", WORK)
def test_missing(work: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, package, extra, call = WORK[work]
    ours = "chaski.server.telemetry.span_export"  # which imports a package at its top
    for name in [name for name in sys.modules if name == ours or name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        MissingPackageError, match=rf"package {package};.*pip install 'chaski-llm\[{extra}\]'$"
    ):
        call()
    names = [requirement.partition(">")[0] for requirement in PROJECT["optional-dependencies"][extra]]
    assert package in names
    assert package not in [requirement.partition(">")[0] for requirement in PROJECT["dependencies"]]


def test_all_extras_that_work_needs_are_in_one() -> None:
    extras = PROJECT["optional-dependencies"]
    assert set(extras["all"]) == {package for _, _, extra, _ in WORK.values() for package in extras[extra]}
    assert set(extras["all"]) <= set(extras["dev"])
