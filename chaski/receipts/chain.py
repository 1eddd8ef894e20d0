"""The chain of hashes over the steps of an answer.

The first link is the hash of the receipt's head. Each step adds the SHA-256 of the link before it, of its
token and, if they are covered, of its largest logits. So the last link commits to every step in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from chaski.receipts.receipt import Chain, Receipt, token_bytes
from chaski.sample.bucket_selection import candidates

__all__ = ["chain_of", "links", "next_link", "top_bytes"]


def next_link(link: bytes, token_id: int, tops: bytes = b"") -> bytes:
    """Return the link after `link` for a step. `tops`: what `top_bytes` returns for its logits."""
    return hashlib.sha256(link + token_bytes([token_id]) + tops).digest()


def links(head: bytes, tokens: Iterable[int], tops: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the link of each step."""
    link = head
    for token_id, top in zip(tokens, tops, strict=True):
        link = next_link(link, token_id, top)
        yield link


def chain_of(receipt: Receipt, num_top: int, tops: Sequence[bytes]) -> Chain:
    """Return the chain of a receipt; `tops` has the bytes of each step's `num_top` largest logits."""
    head = receipt.head()
    found = list(links(head, receipt.output, tops))
    last = (found or [head])[-1].hex()
    return Chain(top_logits=num_top, last=last, links=tuple(map(bytes.hex, found)) if num_top else None)


def top_bytes(logits: npt.NDArray[np.float32], count: int) -> bytes:
    """Return the `count` largest logits of (vocabulary,), equal ones by id: of each its id and its bits.

    Both are little-endian, of four bytes.
    """
    ids = candidates(logits, count)
    order = ids[np.lexsort((ids, -logits[ids]))[:count]]
    pairs = np.empty(len(order), [("id", "<u4"), ("logit", "<f4")])
    pairs["id"], pairs["logit"] = order, logits[order]
    return pairs.tobytes()
