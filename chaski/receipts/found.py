"""Receipts in files: alone, in replies of any API, and in lines of results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from chaski.errors import ReceiptError
from chaski.receipts.receipt import MAX_BYTES, Receipt, load
from chaski.regular_files import open_regular

__all__ = ["FoundReceipt", "found_receipts"]


class FoundReceipt(NamedTuple):
    """A receipt, and its place for messages."""

    where: str
    receipt: Receipt


def found_receipts(path: str) -> Iterator[FoundReceipt]:
    """Yield the receipts of a file of JSON or JSON lines; "-" is standard input.

    Lines without a receipt are passed over. Raises ReceiptError for a file without any, and for false JSON.
    """
    is_found = False
    try:
        with sys.stdin.buffer if path == "-" else open_regular(Path(path)) as file:
            for found in _read(file, path):
                is_found = True
                yield found
    except OSError as error:
        raise ReceiptError(f"{path} cannot be read: {error.strerror}") from None
    if not is_found:
        raise ReceiptError(f"{path} contains no receipt; ask for one with the option receipt")


def _read(file: BinaryIO, path: str) -> Iterator[FoundReceipt]:
    first = file.readline(MAX_BYTES + 1)
    second = file.readline(MAX_BYTES + 1)
    if not second or not first.rstrip().endswith(b"}") or first.strip() == b"{}":
        whole = first + second + file.read(MAX_BYTES + 1)
        yield from _in(load(whole, path), path)
        return
    number, line = 0, first
    for number, line in enumerate((first, second), 1):
        yield from _in_line(line, f"{path}, line {number}")
    while line := file.readline(MAX_BYTES + 1):
        number += 1
        yield from _in_line(line, f"{path}, line {number}")


def _in_line(line: bytes, where: str) -> Iterator[FoundReceipt]:
    if not line.isspace():
        yield from _in(load(line, where), where)


def _in(value: Any, where: str) -> Iterator[FoundReceipt]:
    """Yield the receipts in a value: one itself, or in a reply, its choices, or the line of a batch."""
    if not isinstance(value, dict):
        return
    if "format" in value and "chain" in value:
        yield FoundReceipt(where, Receipt.of(value, where))
        return
    if "receipt" in value:
        yield FoundReceipt(where, Receipt.of(value["receipt"], where))
    choices = value.get("choices")
    for number, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict) and "receipt" in choice:
            place = f"{where}, choice {number}" if number else where
            yield FoundReceipt(place, Receipt.of(choice["receipt"], place))
    for name in ("response", "body"):
        yield from _in(value.get(name), where)
