"""Reading of receipts, which may come from strangers, and their signatures."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from chaski.errors import OptionError, ReceiptError
from chaski.receipts.chain import chain_of, next_link, top_bytes
from chaski.receipts.receipt import Chain, End, ModelPart, PromptPart, Receipt, token_digest
from chaski.receipts.signing import has_valid_signature, read_key, server_key, shown_key, signed
from chaski.receipts.wish import ReceiptWish
from chaski.store.store import Store


def receipt(num_top: int = 0) -> Receipt:
    """Return a small receipt with a valid chain."""
    found = Receipt(
        engine="chaski 0",
        rule="native 1",
        model=ModelPart(
            architecture="llama", files=("ab" * 32,), kv_type="i16", attention="flash", context=64
        ),
        prompt=PromptPart(count=2, digest=token_digest([1, 2]), tokens=(1, 2)),
        options={"temperature": 0.8, "top_k": 40},
        seed="18446744073709551615",
        output=(5, 6),
        end=End(reason="length"),
        chain=Chain(last="0" * 64),
    )
    return replace(found, chain=chain_of(found, num_top, [b"a" * num_top, b"b" * num_top]))


def test_written_and_read_again() -> None:
    for found in (receipt(), receipt(2), receipt().without_prompt()):
        assert Receipt.read(found.text().encode()) == found
        assert Receipt.read(json.dumps(found.fields(), indent=2).encode()).text() == found.text()


def test_the_chain_covers_the_head_and_every_step() -> None:
    found = receipt()
    first = next_link(found.head(), 5)
    assert found.chain.last == next_link(first, 6).hex()
    assert found.without_prompt().head() == found.head()
    for change in ({"seed": "3"}, {"ends": (9,)}, {"rule": "native 2"}, {"options": {"top_k": 41}}):
        assert replace(found, **change).head() != found.head()


def test_top_logits_are_ordered_by_value_then_by_id() -> None:
    logits = np.array([1, 3, 2, 3, -1] + [-5] * 300, np.float32)
    pairs = np.frombuffer(top_bytes(logits, 4), [("id", "<u4"), ("logit", "<f4")])
    assert pairs["id"].tolist() == [1, 3, 2, 0]
    assert pairs["logit"].tolist() == [3, 3, 2, 1]


def test_signatures_hold_without_the_prompt_and_for_nothing_else(tmp_path: Path) -> None:
    key = server_key(Store(tmp_path))
    found = signed(receipt(), key)
    assert has_valid_signature(found)
    assert has_valid_signature(found.without_prompt())
    assert not has_valid_signature(receipt())
    assert not has_valid_signature(replace(found, seed="4"))
    assert not has_valid_signature(replace(found, output=(5, 7)))
    other = server_key(Store(tmp_path / "other"))
    assert found.signature is not None
    assert not has_valid_signature(replace(found, signature=replace(found.signature, key=shown_key(other))))
    for broken in ("A", "AAAA", found.signature.key):
        assert not has_valid_signature(replace(found, signature=replace(found.signature, value=broken)))


def test_the_key_is_private_and_read_in_each_form(tmp_path: Path) -> None:
    key = server_key(Store(tmp_path))
    file = tmp_path / "chaski" / "receipt_key"
    assert file.stat().st_mode & 0o777 == 0o600
    line = file.with_name("receipt_key.pub").read_text()
    shown = shown_key(key)
    assert len(base64.b64decode(shown)) == 32
    for text in (shown, line, str(file.with_name("receipt_key.pub"))):
        assert read_key(text) == shown
    for text in ("", "ssh-ed25519", "ssh-rsa AAAA", str(tmp_path), str(file)):
        with pytest.raises(ReceiptError, match="public key"):
            read_key(text)


def changed(path: str, value: Any) -> Any:
    """Return the fields of a receipt with one changed; the value ... removes it."""
    found: Any = receipt(2).fields()
    *before, last = path.split(".")
    owner = found
    for name in before:
        owner = owner[name]
    if value is ...:
        del owner[last]
    else:
        owner[last] = value
    return found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("format", "chaski-receipt-2"),
        ("more", 1),
        ("model.path", "/etc/passwd"),
        ("model.files", []),
        ("model.files", ["../" * 20]),
        ("model.attention", "other"),
        ("prompt.tokens", [-1]),
        ("prompt.tokens", [2**31]),
        ("prompt.tokens", "12"),
        ("output", [1.5]),
        ("output", [True]),
        ("output", [1]),  # fewer than links
        ("output", ...),
        ("seed", "01"),
        ("seed", 7),
        ("seed", "1" * 21),
        ("rule", "x" * 201),
        ("chain.top_logits", 21),
        ("chain.top_logits", 0),
        ("chain.links", ...),
        ("chain.last", "Z" * 64),
        ("end.reason", "cancelled"),
        ("options", []),
        ("signature", {"algorithm": "none", "key": "", "value": ""}),
        ("signature", {"key": "!", "value": ""}),
    ],
)
def test_what_is_no_receipt(path: str, value: Any) -> None:
    with pytest.raises(ReceiptError, match=r"r\.json"):
        Receipt.read(json.dumps(changed(path, value)).encode(), "r.json")


@pytest.mark.parametrize(
    "data",
    [b"", b"[", b"\xff", b"[" * 100_000, b"1" * 400, b"[" + b"0," * 4_000_000 + b"0]", b" " * (65 << 20)],
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(ReceiptError, match=r"r\.json"):
        Receipt.read(data, "r.json")


def test_a_name_that_is_no_text() -> None:
    """Found by fuzzing."""
    data = json.dumps(changed("signature", {"\ud800": 1})).encode()
    with pytest.raises(ReceiptError, match=r"r\.json"):
        Receipt.read(data, "r.json")


def test_wishes() -> None:
    assert ReceiptWish.read(None) is ReceiptWish.read(False) is None
    assert ReceiptWish.read(True) == ReceiptWish()
    assert ReceiptWish.read({"prompt": "digest", "top_logits": 3}) == ReceiptWish("digest", 3)
    refused: list[Any] = [1, "yes", {"prompt": "none"}, {"top_logits": 21}, {"top_logits": -1}, {"a": 1}, []]
    for wrong in refused:
        with pytest.raises(OptionError, match="receipt"):
            ReceiptWish.read(wrong)


def test_the_schema_is_that_of_the_code() -> None:
    file = Path(__file__).parents[2] / "docs" / "receipt.schema.json"
    assert json.loads(file.read_text()) == json.loads(json.dumps(msgspec.json.schema(Receipt)))
