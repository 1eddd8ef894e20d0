"""WordPiece vocabularies of BERT (Devlin et al. 2018) → `tokenizer.ggml.model` = `bert`.

GGUF marks tokens that begin a word, as SentencePiece does. WordPiece marks continuing tokens with `##`.
"""

from __future__ import annotations

from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.files import TokenizerFiles
from chaski.convert.tokenizer.tokens import SPACE, TokenList
from chaski.errors import UnsupportedError
from chaski.text.tokenizer.vocabulary import PREFIX, TokenType

__all__ = ["wordpiece_metadata"]


def wordpiece_metadata(files: TokenizerFiles, tokens: TokenList) -> Metadata:
    model = files.tokenizer.part("model")
    if model.get("continuing_subword_prefix", str, "##") != "##":
        raise UnsupportedError(f"{model.path}: only the mark '##' for continued words can be converted")
    tokens.put_all(model.part("vocab").values)
    tokens.add(files.added_tokens().values())
    for i, token in enumerate(tokens.tokens):
        if tokens.types[i] is not TokenType.CONTROL and not _is_placeholder(token):
            tokens.tokens[i] = token[2:] if token.startswith("##") else SPACE + token
    return tokens.metadata("bert", "default") | _normalizer(files)


def _is_placeholder(token: str) -> bool:
    """Return whether a token is a placeholder such as [unused7], which no text produces."""
    return len(token) > 1 and token.startswith("[") and token.endswith("]")


def _normalizer(files: TokenizerFiles) -> Metadata:
    """Return whether text is lowercased, and whether accents are removed (if absent, the same)."""
    normalizer = files.tokenizer.part("normalizer")
    normalizer.expect("type", "BertNormalizer")
    entries: Metadata = {f"{PREFIX}normalizer.lowercase": normalizer.get("lowercase", bool, True)}
    accents = normalizer.get("strip_accents", bool, None)
    return entries if accents is None else entries | {f"{PREFIX}normalizer.strip_accents": accents}
