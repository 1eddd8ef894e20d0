"""The files that describe a tokenizer, and the tokens that were added to its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from chaski.convert.config import Config, read_json
from chaski.errors import TokenizerError

__all__ = ["FAIRSEQ_MODEL", "AddedToken", "TokenizerFiles", "read_files"]

FAIRSEQ_MODEL = "sentencepiece.bpe.model"
"""The model file of XLM-RoBERTa and similar models, whose token ids differ from the file's."""


class AddedToken(Struct, frozen=True):
    """A token that is recognized before the text is split. special: it never appears in decoded text."""

    id: int
    content: str
    special: bool


class TokenizerFiles(Struct, frozen=True):
    """tokenizer: `tokenizer.json`; config: `tokenizer_config.json`; generation: `generation_config.json`.

    model: the model's configuration. A missing file counts as empty.
    """

    folder: Path
    tokenizer: Config
    config: Config
    generation: Config
    model: Config

    @property
    def sentencepiece(self) -> Path:
        """The model file of SentencePiece, under the first of its usual names that exists."""
        names = ("tokenizer.model", FAIRSEQ_MODEL, "spiece.model")
        paths = [self.folder / name for name in names]
        return next((path for path in paths if path.exists()), paths[0])

    def added_tokens(self) -> dict[int, AddedToken]:
        """Return the added tokens by id. The other files supply only ids that `tokenizer.json` lacks."""
        found: dict[int, AddedToken] = {}
        for token in self._listed():
            found.setdefault(token.id, token)
        return found

    def _listed(self) -> Iterator[AddedToken]:
        for entry in self.tokenizer.list("added_tokens"):
            yield _added_token(self.tokenizer.path, entry, entry.get("id"))
        for number, entry in self.config.part("added_tokens_decoder").values.items():
            yield _added_token(self.config.path, entry, int(number) if number.isdecimal() else None)
        for content, number in read_json(self.folder / "added_tokens.json").items():
            yield _added_token(self.folder / "added_tokens.json", {"content": content}, number)


def read_files(folder: Path, model: Config) -> TokenizerFiles:
    def read(name: str) -> Config:
        return Config(folder / name, read_json(folder / name))

    return TokenizerFiles(
        folder, read("tokenizer.json"), read("tokenizer_config.json"), read("generation_config.json"), model
    )


def _added_token(path: Path, entry: Any, number: Any) -> AddedToken:
    if not isinstance(entry, dict) or type(number) is not int or not isinstance(entry.get("content"), str):
        raise TokenizerError(f"{path}: the added token {entry!r:.100} has no id or no content")
    return AddedToken(number, entry["content"], entry.get("special") is True)
