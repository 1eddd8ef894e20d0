"""Loading a `Tokenizer` from GGUF metadata, by its `tokenizer.ggml.model`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from chaski.errors import MissingPackageError, TokenizerError, UnsupportedError
from chaski.formats.gguf import GGUFFile
from chaski.text.tokenizer.bpe import ByteLevelBPE, TextBPE
from chaski.text.tokenizer.charsmap import read_charsmap
from chaski.text.tokenizer.plamo2 import BestPieces
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS, pretokenizer
from chaski.text.tokenizer.rwkv import LongestMatch
from chaski.text.tokenizer.sentencepiece import SentencePieceBPE, read_normalizer
from chaski.text.tokenizer.tokenizer import Tokenizer
from chaski.text.tokenizer.unigram import Unigram
from chaski.text.tokenizer.vocabulary import (
    MAY_BE_KNOWN,
    PREFIX,
    Vocabulary,
    read_numbers,
    read_scalar,
    read_strings,
    read_vocabulary,
)
from chaski.text.tokenizer.wordpiece import WordPiece, WordPieceOptions

_log = logging.getLogger(__name__)
_NONE = ("none", "no_vocab")
_DEFAULT_RULES = "default"


def has_tokenizer(metadata: Mapping[str, object]) -> bool:
    """Return whether a file has a tokenizer. Raises `TokenizerError` for a kind that is not a string."""
    return read_scalar(metadata, "model", str) not in (None, *_NONE)


def check_tokenizer(file: GGUFFile) -> None:
    """Raise `TokenizerError` for an unknown kind of tokenizer or pre-tokenizer, or for missing merges.

    A file without a tokenizer passes: its model receives ids. The vocabulary is not read, as that takes long.
    """
    with _naming(file):
        if has_tokenizer(file.metadata) and _loader(file.metadata) is _load_pairs:
            pretokenizer(read_scalar(file.metadata, "pre", str) or _DEFAULT_RULES)
            read_strings(file.metadata, "merges")


def file_tokenizer(file: GGUFFile) -> Tokenizer:
    """Return the tokenizer of a GGUF file; see `load_tokenizer`. Errors name the file."""
    with _naming(file):
        return load_tokenizer(file.metadata)


@contextmanager
def _naming(file: GGUFFile) -> Iterator[None]:
    """Prefix the message of an error that names a key with the file's path."""
    try:
        yield
    except MissingPackageError:
        raise
    except (TokenizerError, UnsupportedError) as error:
        raise type(error)(f"{file.path}: {error}") from error


def load_tokenizer(metadata: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer that a GGUF file's metadata describes.

    This reads only the ids that have a role; the first `encode` reads merges and pieces. Raises
    `TokenizerError` naming the key that is missing, malformed or of an unknown kind.
    """
    return _loader(metadata)(metadata)


def _loader(metadata: Mapping[str, object]) -> Callable[[Mapping[str, object]], Tokenizer]:
    model = read_scalar(metadata, "model", str)
    if model is None or model in _NONE:
        raise TokenizerError(f"{PREFIX}model is {model or 'missing'}: this file has no tokenizer")
    try:
        return _LOADERS[model]
    except KeyError:
        raise TokenizerError(
            f"{PREFIX}model is {model!r}; supported are {', '.join(sorted(_LOADERS))}. {MAY_BE_KNOWN}"
        ) from None


def _load_pairs(metadata: Mapping[str, object]) -> Tokenizer:
    name = read_scalar(metadata, "pre", str)
    if not name:
        _log.warning(
            "%spre is missing: text is cut into words by llama.cpp's default, which may not suit the model",
            PREFIX,
        )
    return _by_pairs(metadata, name or _DEFAULT_RULES)


def _load_gemma4(metadata: Mapping[str, object]) -> Tokenizer:
    """Load a tokenizer of this kind, which always uses one rule, regardless of the file's name for it."""
    return _by_pairs(metadata, "gemma4")


def _by_pairs(metadata: Mapping[str, object], name: str) -> Tokenizer:
    rules = pretokenizer(name)
    vocabulary = read_vocabulary(metadata, default_add_bos=rules.add_bos)
    codec = ByteLevelBPE if rules.byte_level else TextBPE
    return Tokenizer(vocabulary, codec(vocabulary, read_strings(metadata, "merges"), rules))


def _load_sentencepiece(metadata: Mapping[str, object]) -> Tokenizer:
    vocabulary = read_vocabulary(metadata, default_add_bos=True)
    if read_charsmap(metadata):
        # The library would trust the unchecked table, and no model of this kind needs one.
        raise UnsupportedError(f"{PREFIX}precompiled_charsmap is not supported if {PREFIX}model is 'llama'")
    codec = SentencePieceBPE(vocabulary, _scores(metadata, vocabulary), read_normalizer(metadata))
    # No key shows it: of this kind, only Phi 3 was trained without the line breaks that its template writes.
    return Tokenizer(vocabulary, codec, strips_after_special=metadata.get("general.architecture") == "phi3")


def _load_unigram(metadata: Mapping[str, object]) -> Tokenizer:
    vocabulary = read_vocabulary(metadata, default_add_bos=False, default_add_eos=True)
    scores, charsmap = _scores(metadata, vocabulary), read_charsmap(metadata)
    return Tokenizer(vocabulary, Unigram(vocabulary, scores, read_normalizer(metadata), charsmap))


def _scores(metadata: Mapping[str, object], vocabulary: Vocabulary) -> NDArray[np.float32]:
    scores = read_numbers(metadata, "scores", len(vocabulary))
    if scores is None:
        raise TokenizerError(
            f"{PREFIX}scores is missing: a SentencePiece vocabulary needs a score for each token"
        )
    if not np.isfinite(scores).all():
        raise TokenizerError(f"{PREFIX}scores contains a value that is not finite")
    return scores.astype(np.float32)


def _load_wordpiece(metadata: Mapping[str, object]) -> Tokenizer:
    """Load a tokenizer that puts texts between two tokens, which files may name only by BERT's names."""
    own = {"bos_token_id": "cls_token_id", "eos_token_id": "seperator_token_id"}
    known = {
        PREFIX + role: metadata[PREFIX + name] for role, name in own.items() if PREFIX + name in metadata
    }
    vocabulary = read_vocabulary({**known, **metadata}, default_add_bos=True, default_add_eos=True)
    return Tokenizer(vocabulary, WordPiece(vocabulary, WordPieceOptions.read(metadata)))


def _load_rwkv(metadata: Mapping[str, object]) -> Tokenizer:
    vocabulary = read_vocabulary(metadata, default_add_bos=False)
    return Tokenizer(vocabulary, LongestMatch(vocabulary))


def _load_plamo2(metadata: Mapping[str, object]) -> Tokenizer:
    vocabulary = read_vocabulary(metadata, default_add_bos=False)
    return Tokenizer(vocabulary, BestPieces(vocabulary, _scores(metadata, vocabulary)))


_LOADERS: dict[str, Callable[[Mapping[str, object]], Tokenizer]] = {
    "bert": _load_wordpiece,
    "gemma4": _load_gemma4,
    "gpt2": _load_pairs,
    "llama": _load_sentencepiece,
    "plamo2": _load_plamo2,
    "rwkv": _load_rwkv,
    "t5": _load_unigram,
}


def unknown_kind(metadata: Mapping[str, object]) -> str | None:
    """Return the file's tokenizer or pre-tokenizer if it is unknown here; another engine may know it."""
    model, pre = metadata.get(f"{PREFIX}model"), metadata.get(f"{PREFIX}pre")
    if isinstance(model, str) and model not in (*_LOADERS, *_NONE):
        return f"{PREFIX}model = {model!r:.40}"
    if model == "gpt2" and isinstance(pre, str) and pre and pre not in PRETOKENIZERS:
        return f"{PREFIX}pre = {pre!r:.40}"
    charsmap = metadata.get(f"{PREFIX}precompiled_charsmap")
    if model == "llama" and isinstance(charsmap, Sized) and len(charsmap) > 0:
        return f"{PREFIX}precompiled_charsmap with {PREFIX}model = 'llama'"
    return None
