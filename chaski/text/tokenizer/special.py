"""The search for special tokens in text: leftmost first, and the longest of those that begin at one place.

This is the rule of Hugging Face `tokenizers`. llama.cpp takes the tokens in the order of their ids instead,
which differs only if one special token contains another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from chaski.errors import TokenizerError

_LONGEST = 128  # characters; the pattern nests once for each place where two tokens diverge


class SpecialSplitter:
    """Splits text at special tokens, in time linear in the text for any number of tokens.

    The tokens in `stripping` absorb the white space after them.
    """

    def __init__(self, ids: Mapping[str, int], stripping: AbstractSet[str] = frozenset()) -> None:
        self._ids = ids
        self._stripping = stripping
        for token in ids:
            if len(token) > _LONGEST:
                raise TokenizerError(f"special token {token[:40]!r}… has more than {_LONGEST} characters")
        self._pattern = re.compile(f"({_trie_pattern(ids)})") if ids else None

    def split(self, text: str) -> tuple[list[str], list[int]]:
        """Return texts and the ids between them: one text more than ids; texts may be empty."""
        if self._pattern is None:
            return [text], []
        parts = self._pattern.split(text)
        texts, tokens = parts[::2], parts[1::2]
        for index, token in enumerate(tokens, 1):
            if token in self._stripping:
                texts[index] = texts[index].lstrip()
        return texts, [self._ids[token] for token in tokens]


def _trie_pattern(tokens: Mapping[str, int]) -> str:
    """Return a pattern for any of the tokens: it tries shared prefixes once, longer tokens first."""
    root: dict[str, Any] = {}
    for token in tokens:
        node = root
        for character in token:
            node = node.setdefault(character, {})
        node[""] = {}
    return _node_pattern(root)


def _node_pattern(node: dict[str, Any]) -> str:
    prefix = ""
    while len(node) == 1 and "" not in node:
        character, node = next(iter(node.items()))
        prefix += re.escape(character)
    branches = [re.escape(character) + _node_pattern(child) for character, child in node.items() if character]
    if not branches:
        return prefix
    return f"{prefix}(?:{'|'.join(branches)}){'?' if '' in node else ''}"
