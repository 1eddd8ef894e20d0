"""Token ids that have a role, whether encoding adds them, and the chat templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from chaski.convert.config import read_json
from chaski.convert.metadata import Metadata
from chaski.convert.tokenizer.files import FAIRSEQ_MODEL, TokenizerFiles
from chaski.errors import FormatError, TokenizerError, UnsupportedError
from chaski.regular_files import read_regular
from chaski.text.tokenizer.vocabulary import PREFIX

__all__ = ["special_metadata"]

# The role in Hugging Face's files → the key in GGUF, with GGUF's spelling.
_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "mask": "mask",
    "eot": "eot",
    "eom": "eom",
}
_STAND_INS = {"bos": "cls", "eos": "sep"}
# The end tokens that some families, with other names for SentencePiece's file, put around text.
_ENDS = {FAIRSEQ_MODEL: (True, True), "spiece.model": (False, True)}


def special_metadata(files: TokenizerFiles, ids: Mapping[str, int]) -> Metadata:
    """Return the keys for roles and chat templates. ids: the id of every token."""
    roles = {role: token_id for role in _ROLES if (token_id := _role_id(files, ids, role)) is not None}
    adds = {}
    for role, token in _added_around_text(files).items():
        adds[role] = token is not None
        if token is not None:
            _give_role(roles, role, _id_of(files, ids, token))
    if not files.tokenizer.values:
        bos, eos = _ENDS.get(files.sentencepiece.name, (True, False))
        adds = {"bos": files.config.get("add_bos_token", bool, bos)}
        adds["eos"] = files.config.get("add_eos_token", bool, eos)
    entries: Metadata = {f"{PREFIX}{_ROLES[role]}_token_id": token_id for role, token_id in roles.items()}
    entries |= {f"{PREFIX}add_{role}_token": value for role, value in adds.items()}
    if _has_two_between(files):
        entries[f"{PREFIX}add_sep_token"] = True
    ends = _end_ids(files)
    if len(ends) > 1:
        entries[f"{PREFIX}eos_token_ids"] = np.array(ends, np.int32)
    suppressed = _suppressed(files, len(ids))
    if suppressed:
        entries[f"{PREFIX}suppress_tokens"] = np.array(suppressed, np.int32)
    return entries | _templates(files)


def _give_role(roles: dict[str, int], role: str, token_id: int) -> None:
    """Give the role to the token that encoding adds. A replaced EOS becomes the end of a turn."""
    old = roles.get(role, token_id)
    if role == "eos" and old != token_id:
        roles.setdefault("eot", old)
    roles[role] = token_id


def _id_of(files: TokenizerFiles, ids: Mapping[str, int], token: str) -> int:
    if token not in ids:
        raise TokenizerError(
            f"{files.tokenizer.path}: the post-processor adds {token!r:.80}, which is not a token"
        )
    return ids[token]


def _role_id(files: TokenizerFiles, ids: Mapping[str, int], role: str) -> int | None:
    """Return a role's id from the tokenizer's files, or else from the model's configuration."""
    for name in (role, _STAND_INS.get(role, role)):
        token = files.config.values.get(f"{name}_token")
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str) and content in ids:
            return ids[content]
    for config in (files.model, files.generation):
        found = config.values.get(f"{role}_token_id")
        first = found[0] if isinstance(found, list) and found else found
        # Configurations often name a padding row of the embedding. In this case no token has the role.
        if type(first) is int and first in ids.values():
            return first
    return None


def _end_ids(files: TokenizerFiles) -> list[int]:
    """Return the ids of all tokens that end an answer."""
    for config in (files.generation, files.model):
        found = config.values.get("eos_token_id")
        if found is not None:
            ends = found if isinstance(found, list) else [found]
            if not all(type(token_id) is int for token_id in ends):
                raise TokenizerError(f"{config.path}: 'eos_token_id' is {found!r:.80}")
            return ends
    return []


def _suppressed(files: TokenizerFiles, size: int) -> list[int]:
    """Return the ids of the tokens that generation never chooses."""
    found = files.generation.values.get("suppress_tokens") or []
    if not isinstance(found, list) or not all(type(each) is int and 0 <= each < size for each in found):
        raise TokenizerError(f"{files.generation.path}: 'suppress_tokens' is {found!r:.80}")
    return found


def _added_around_text(files: TokenizerFiles) -> dict[str, str | None]:
    """The tokens that encoding puts before and after a text, from the post-processor."""
    steps = list(_post_processors(files.tokenizer.part("post_processor").values))
    template = next((step for step in steps if step.get("type") == "TemplateProcessing"), None)
    first, last = _ends_of_template(files, template) if template else _ends_of_bert(steps)
    return {"bos": first, "eos": last}


def _has_two_between(files: TokenizerFiles) -> bool:
    """Return whether two tokens separate the texts of a pair, as in RoBERTa."""
    steps = list(_post_processors(files.tokenizer.part("post_processor").values))
    if any(step.get("type") == "RobertaProcessing" for step in steps):
        return True
    template = next((step for step in steps if step.get("type") == "TemplateProcessing"), {})
    parts = template.get("pair") or []
    places = [i for i, part in enumerate(parts) if "Sequence" in part]
    is_fairseq = not files.tokenizer.values and files.sentencepiece.name == FAIRSEQ_MODEL
    return is_fairseq or (len(places) == 2 and places[1] - places[0] == 3)


def _post_processors(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if step.get("type") == "Sequence":
        for part in step.get("processors") or []:
            yield from _post_processors(part)
    elif step:
        yield step


def _ends_of_template(files: TokenizerFiles, step: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The tokens before and after the text of `single`, such as [BOS] A [EOS]."""
    parts = step.get("single") or []
    place = next((i for i, part in enumerate(parts) if "Sequence" in part), 0)
    before, behind = parts[:place], parts[place + 1 :]
    return _only_token(files, before), _only_token(files, behind)


def _only_token(files: TokenizerFiles, parts: list[Any]) -> str | None:
    if len(parts) > 1:
        raise UnsupportedError(
            f"{files.tokenizer.path}: a template that adds {parts!r:.200} cannot be converted"
        )
    return parts[0].get("SpecialToken", {}).get("id") if parts else None


def _ends_of_bert(steps: list[Mapping[str, Any]]) -> tuple[str | None, str | None]:
    """Return the first and last token of `BertProcessing` and `RobertaProcessing`, which list (text, id)."""
    for step in steps:
        if step.get("type") in ("BertProcessing", "RobertaProcessing"):
            return step["cls"][0], step["sep"][0]
    return None, None


def _templates(files: TokenizerFiles) -> Metadata:
    """Return the keys of the chat template and of other templates by name."""
    named = _named_templates(files)
    default = named.pop("default", None)
    entries: Metadata = {} if default is None else {"tokenizer.chat_template": default}
    if named:
        entries["tokenizer.chat_templates"] = sorted(named)
    return entries | {f"tokenizer.chat_template.{name}": text for name, text in named.items()}


def _named_templates(files: TokenizerFiles) -> dict[str, str]:
    """Return the template from a separate file, or else the one in the configuration."""
    separate = files.folder / "chat_template.jinja"
    if separate.exists():
        others = sorted((files.folder / "additional_chat_templates").glob("*.jinja"))
        return {"default": _text(separate)} | {path.stem: _text(path) for path in others}
    found = files.config.values.get("chat_template")
    if found is None:
        found = read_json(files.folder / "chat_template.json").get("chat_template")
    if found is None or isinstance(found, str):
        return {} if found is None else {"default": found}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in found}
    except (TypeError, KeyError):
        raise FormatError(f"{files.config.path}: 'chat_template' is {found!r:.80}") from None


def _text(path: Path) -> str:
    try:
        return read_regular(path).decode()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 (at byte {error.start})") from None
