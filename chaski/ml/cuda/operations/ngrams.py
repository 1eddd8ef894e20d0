"""Embeddings of n-grams, whose rows a hash of the last tokens chooses."""

from __future__ import annotations

import numpy as np

from chaski.ml.cuda.lowering import Constant, Lowering
from chaski.ml.graph import Tensor, width

__all__ = ["hash_ngrams", "rooted_dots", "token_numbers"]


def token_numbers(lowering: Lowering, node: Tensor, tokens: Tensor) -> None:
    arguments = tokens, lowering.count(node), lowering.new(node)
    lowering.for_each("ngrams", "token_numbers", node, 1, *arguments)


def hash_ngrams(lowering: Lowering, node: Tensor, tokens: Tensor, before: Tensor) -> None:
    attributes = node.attributes
    multipliers = np.array(attributes["multipliers"], np.uint64)
    arguments = (
        *(tokens, lowering.count(node), before, width(before), Constant(multipliers), len(multipliers)),
        *(attributes["size"], attributes["offset"], attributes["separator"], lowering.new(node)),
    )
    lowering.for_each("ngrams", "hash_ngrams", node, 1, *arguments)


def rooted_dots(lowering: Lowering, node: Tensor, a: Tensor, b: Tensor) -> None:
    heads, size = width(node), width(a) // width(node)
    arguments = (
        *(a, b, lowering.count(node), heads, size),
        *(float(node.attributes["factor"]), float(node.attributes["least"]), lowering.new(node)),
    )
    lowering.for_each("ngrams", "rooted_dots", node, heads, *arguments)
