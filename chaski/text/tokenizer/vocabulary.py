"""The vocabulary of a file: its tokens, their types, and the ids that have a role.

This module reads and checks the `tokenizer.ggml.*` metadata; it does not cut text into tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeVar, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski import _native
from chaski.errors import TokenizerError, extra_command
from chaski.formats.gguf_metadata import kind_name
from chaski.formats.string_array import StringArray
from chaski.text.tokenizer.ends import FILL_IN_TEXTS, MarkedTokens, find_marked, find_words

PREFIX = "tokenizer.ggml."
MAY_BE_KNOWN = (
    f"llama.cpp may know it: {extra_command('llama-cpp')} adds it as a second engine, which `chaski run` "
    "and `chaski serve` take with the option engine='llama.cpp'"
)

# Old names in files for the roles of fill-in-the-middle tokens.
_OLD_ROLES = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}

# Roles of tokens in the original vocabularies of these kinds of tokenizer.
_USUAL_ROLES = {
    "bert": {"bos": 101, "eos": 102, "unknown": 100},
    "llama": {"bos": 1, "eos": 2},
    "plamo2": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2},
}

_Scalar = TypeVar("_Scalar", bool, int, str)


class TokenType(IntEnum):
    """The type of a token, with the numbers of GGUF and of SentencePiece's `ModelProto`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_TYPES_OF_TEXT = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)


class Vocabulary(Struct, frozen=True):
    """Tokens in the file's spelling, with one `TokenType` each; ids are positions.

    Tokens whose spelling ends an answer are control tokens, regardless of their type in the file. Tokens in
    `suppressed_ids` are never chosen.
    """

    tokens: Sequence[str]
    types: NDArray[np.int32]  # (size,)
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    suppressed_ids: frozenset[int] = frozenset()

    def __len__(self) -> int:
        return len(self.tokens)

    def ids_of_type(self, *types: TokenType) -> list[int]:
        """Return the ids of all tokens of these types, ascending."""
        return np.flatnonzero(np.isin(self.types, types)).tolist()


def read_vocabulary(
    metadata: Mapping[str, object], *, default_add_bos: bool, default_add_eos: bool = False
) -> Vocabulary:
    """Read tokens, types and role ids. Defaults apply if a file does not define whether BOS or EOS is added.

    Raises `TokenizerError` naming the key that is absent, of a wrong type or out of range.
    """
    tokens = read_strings(metadata, "tokens")
    metadata = {**_usual_roles(metadata, len(tokens)), **metadata}
    types = _token_types(metadata, len(tokens))
    marked = _marked(metadata, tokens, types)
    types = _as_controls(types, marked.controls)
    bos_id = _token_id(metadata, "bos_token_id", len(tokens))
    eos_id = _token_id(metadata, "eos_token_id", len(tokens))
    return Vocabulary(
        tokens=tokens,
        types=types,
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=_token_id(metadata, "unknown_token_id", len(tokens)),
        eos_ids=marked.ends,
        add_bos=_adds(metadata, "bos", bos_id, default_add_bos),
        add_eos=_adds(metadata, "eos", eos_id, default_add_eos),
        suppressed_ids=_suppressed(metadata, len(tokens)),
    )


def _usual_roles(metadata: Mapping[str, object], size: int) -> dict[str, object]:
    """Return the ids that llama.cpp uses if a file names none, by the kind of its tokenizer."""
    roles = _USUAL_ROLES.get(read_scalar(metadata, "model", str) or "", {})
    return {f"{PREFIX}{role}_token_id": token_id for role, token_id in roles.items() if token_id < size}


def read_scalar(metadata: Mapping[str, object], name: str, kind: type[_Scalar]) -> _Scalar | None:
    """Return the value of `tokenizer.ggml.<name>`, or None. Raises `TokenizerError` for other types."""
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    if type(value) is not kind:
        raise TokenizerError(f"{PREFIX}{name} is {kind_name(value)}, expected {kind.__name__}")
    return value


def read_strings(metadata: Mapping[str, object], name: str) -> Sequence[str]:
    """Return the string array `tokenizer.ggml.<name>`. Raises `TokenizerError` if it is absent or empty."""
    value = metadata.get(PREFIX + name)
    if value is None:
        raise TokenizerError(f"{PREFIX}{name} is missing: this file has no usable tokenizer")
    if (
        isinstance(value, str | tuple | np.ndarray)  # an array of arrays is a tuple
        or not hasattr(value, "__getitem__")
        or not hasattr(value, "__len__")
    ):
        raise TokenizerError(f"{PREFIX}{name} is {kind_name(value)}, expected an array of strings")
    strings = cast("Sequence[str]", value)
    if len(strings) == 0:
        raise TokenizerError(f"{PREFIX}{name} is empty")
    return strings


def string_list(strings: Sequence[str], name: str) -> list[str]:
    """Return a metadata array as a list of Python strings, which is slow for a large vocabulary."""
    return utf8_strings(strings, name).tolist()


def utf8_strings(strings: Sequence[str], name: str) -> StringArray:
    """Return the strings of a metadata array as in the file, after a check that all are UTF-8."""
    if not isinstance(strings, StringArray):
        if not set(map(type, strings)) <= {str}:
            raise TokenizerError(f"{PREFIX}{name} contains a value that is not a string")
        strings = StringArray.of(strings)
    index = _native.first_that_is_not_utf8(strings.data, strings.offsets)
    if index < len(strings):
        raise TokenizerError(f"{PREFIX}{name}[{index}] is not UTF-8: {strings[index]!r}")
    return strings


def read_numbers(metadata: Mapping[str, object], name: str, length: int) -> NDArray[np.generic] | None:
    """Return the number array `tokenizer.ggml.<name>`, None if absent.

    Raises `TokenizerError` if it does not have `length` numbers.
    """
    value = metadata.get(PREFIX + name)
    if value is None:
        return None
    numbers = _array(value)
    if numbers is None or numbers.ndim != 1 or numbers.dtype.kind not in "iuf":
        raise TokenizerError(f"{PREFIX}{name} is {kind_name(value)}, expected an array of numbers")
    if len(numbers) != length:
        raise TokenizerError(f"{PREFIX}{name} has {len(numbers)} entries for {length} tokens")
    return numbers


def _token_types(metadata: Mapping[str, object], size: int) -> NDArray[np.int32]:
    types = read_numbers(metadata, "token_type", size)
    if types is None:
        return np.full(size, TokenType.NORMAL, np.int32)
    unknown = types[~np.isin(types, list(TokenType))]
    if unknown.size:
        raise TokenizerError(
            f"{PREFIX}token_type has the value {unknown[0]}; types are 1 to {max(TokenType)}"
        )
    return types.astype(np.int32)


def _token_id(metadata: Mapping[str, object], name: str, size: int) -> int | None:
    token_id = read_scalar(metadata, name, int)
    if token_id is not None and not 0 <= token_id < size:
        raise TokenizerError(f"{PREFIX}{name} is {token_id}, but the vocabulary has {size} tokens")
    return token_id


def _suppressed(metadata: Mapping[str, object], size: int) -> frozenset[int]:
    """Return the tokens that answers never contain. Like llama.cpp, ignore ids beyond the vocabulary."""
    return frozenset(token_id for token_id in _ids(metadata, "suppress_tokens") if 0 <= token_id < size)


def _ids(metadata: Mapping[str, object], name: str) -> list[int]:
    """Return the ids of `tokenizer.ggml.<name>`: an array of them, or a single one."""
    value = metadata.get(PREFIX + name, [])
    ids = _array(value)
    found = [] if ids is None else np.ravel(ids).tolist()
    if ids is None or not all(type(token_id) is int for token_id in found):
        raise TokenizerError(f"{PREFIX}{name} is {kind_name(value)}, expected ids of tokens")
    return found


def _array(value: object) -> NDArray[np.generic] | None:
    """Return a value as an array, None for an array of arrays with different lengths."""
    try:
        return np.asarray(value)
    except ValueError:
        return None


def _marked(metadata: Mapping[str, object], tokens: Sequence[str], types: NDArray[np.int32]) -> MarkedTokens:
    """Return the tokens that end an answer, and those that are control tokens by their spelling."""
    size = len(tokens)
    roles = ("eos", "eot", "eom", *FILL_IN_TEXTS)
    named = {role: _token_id(metadata, f"{role}_token_id", size) for role in roles}
    for role, old in _OLD_ROLES.items():
        if named[role] is None:
            named[role] = _token_id(metadata, f"{old}_token_id", size)
    listed = _ids(metadata, "eos_token_ids")
    merges = read_strings(metadata, "merges") if PREFIX + "merges" in metadata else ()
    words = find_words(tokens, merges, lambda token_id: int(types[token_id]) == TokenType.NORMAL)
    return find_marked(tokens, named, listed, words)


def _as_controls(types: NDArray[np.int32], ids: frozenset[int]) -> NDArray[np.int32]:
    """Return the types, with the control type for those of `ids` that have a text type."""
    chosen = np.array(sorted(ids), np.int64)
    texts = chosen[np.isin(types[chosen], _TYPES_OF_TEXT)]
    if not texts.size:
        return types
    found = types.copy()
    found[texts] = TokenType.CONTROL
    return found


def _adds(metadata: Mapping[str, object], role: str, token_id: int | None, default: bool) -> bool:
    """Return whether `encode` adds this token. If the token does not exist, an explicit true is an error."""
    adds = read_scalar(metadata, f"add_{role}_token", bool)
    if adds and token_id is None:
        raise TokenizerError(f"{PREFIX}add_{role}_token is true, but {PREFIX}{role}_token_id is missing")
    return (default and token_id is not None) if adds is None else adds
