"""Grammars that answers must follow, in `llguidance`'s dialect of Lark.

An answer follows a JSON schema, a regular expression, one of several texts, or a grammar of the user's. A
model may think first: then the grammar takes a thought, up to the text that ends it, and then the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from chaski.errors import OptionError
from chaski.sample.gbnf import is_gbnf, lark_rules
from chaski.sample.schema import NAME, SchemaError, json_rule, located

__all__ = [
    "AnswerFormat",
    "AnswerPrefix",
    "Constraint",
    "ConstraintKind",
    "end_mark",
    "not_compiled",
    "refused",
    "written",
]

AnswerFormat: TypeAlias = Literal["json"] | Mapping[str, Any]
"""`json` for any JSON object, or a JSON schema."""

ConstraintKind: TypeAlias = Literal["format", "regex", "choice", "grammar"]

_MAX_LENGTH = {"format": 1 << 18, "regex": 1 << 14, "choice": 1 << 18, "grammar": 1 << 16}
"""Characters at most. Compiling the worst ones of that length takes a second or two."""
_MAX_PARTS = 700
_WORDS = {"format": "holds a schema", "regex": "is one", "choice": "holds texts", "grammar": "holds one"}
_BLANKS_BEHIND_THOUGHT = r"/[ \t\r\n]{0,8}/"


class Constraint(Struct, frozen=True):
    """A rule that an answer must follow. `kind` is the name of the option that gives it."""

    kind: ConstraintKind
    value: Any

    @property
    def text(self) -> str:
        """The value as a text. Raises OptionError for one that is too long or too deep."""
        value = {"type": "object"} if self.value == "json" and self.kind == "format" else self.value
        try:
            text = value if isinstance(value, str) else json.dumps(value)
        except RecursionError:
            raise refused(self.kind, "it is too deep", self._name) from None
        except (TypeError, ValueError) as error:
            raise refused(self.kind, str(error), self._name) from None
        if len(text) > _MAX_LENGTH[self.kind]:
            limit = _MAX_LENGTH[self.kind]
            raise refused(self.kind, f"it has {len(text)} characters; at most {limit} are taken", self._name)
        return text

    @property
    def _name(self) -> str:
        """The field that gave a schema, if the schema names it."""
        name = self.value.get(NAME) if isinstance(self.value, Mapping) else None
        return name[:120] if isinstance(name, str) else ""


class AnswerPrefix(Struct, frozen=True, kw_only=True):
    """The text before an answer: perhaps a thought, and a header.

    opening  begins a thought
    closing  ends it; it may hold any text up to there
    header   text before the answer itself
    is_open  the prompt has begun a thought, so the answer begins inside of it
    repeats  another thought may follow
    end      text that ends a thought whose budget is spent; empty for `closing` and `header`
    may_call a call of a tool may follow a thought
    """

    opening: str
    closing: str
    header: str = ""
    is_open: bool = False
    repeats: bool = False
    end: str = ""
    may_call: bool = False

    @classmethod
    def read(cls, value: Any) -> AnswerPrefix:
        """Read it from a mapping of its fields. Raises OptionError."""
        flags = ("is_open", "repeats", "may_call")
        kinds = {name: bool if name in flags else str for name in cls.__struct_fields__}
        is_known = isinstance(value, Mapping) and {"opening", "closing"} <= value.keys() <= kinds.keys()
        if not is_known or not all(type(item) is kinds[name] for name, item in value.items()):
            raise OptionError(
                f"option format_thought is {value!r:.200}; it must have the texts opening and closing, and "
                "may have header, is_open, repeats, end and may_call"
            )
        if not value["closing"] or not (value["opening"] or value.get("is_open")):
            raise OptionError("option format_thought needs texts that are not empty")
        return cls(**value)


def end_mark(closing: str, controls: Mapping[str, int]) -> str:
    """Return the part of a closing text that ends a thought: a control token at its beginning, or all of it.

    controls: tokens that no text is made of, by spelling.
    """
    first = _split(closing, controls)[0]
    return first if first in controls else closing


def refused(kind: ConstraintKind, why: str, name: str = "") -> OptionError:
    """The error for a constraint that no grammar can be made of. `name` is the field that gives it."""
    return OptionError(f"{name or f'option {kind}'} {_WORDS[kind]} that cannot be used: {why:.200}")


def not_compiled(constraint: Constraint, why: str, problem: Callable[[str], str]) -> OptionError:
    """The error for a constraint whose grammar was refused.

    `problem` compiles a grammar in Lark and returns why it is refused, or an empty text.
    """
    if constraint.kind != "format":
        return refused(constraint.kind, why.partition("\n")[0])
    schema = json.loads(constraint.text)
    error = located(schema, why, lambda part: problem(f"start: {json_rule(part, {})}"))
    return refused("format", str(error), error.where)


def written(
    constraint: Constraint, lead: AnswerPrefix | None, controls: Mapping[str, int], blanks: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the grammars of an answer, the first one on top, as `llguidance` takes them.

    controls: tokens that no text is made of, by spelling. blanks: the layout of JSON, as `llguidance` has it.
    Raises OptionError.
    """
    text = constraint.text
    if not _is_unicode(text):
        raise refused(constraint.kind, "it has half of a surrogate pair, which is not a character")
    if constraint.kind == "grammar" and is_gbnf(text):
        rules = _gbnf_rules(text)
        _check_depth(rules)
        return [{"lark_grammar": _led("answer", lead, controls) + rules}]
    if constraint.kind == "grammar":
        _check_depth(text)
        if lead is None:
            return [{"lark_grammar": text}]
        return [{"lark_grammar": _led("@answer", lead, controls)}, {"name": "answer", "lark_grammar": text}]
    rule = {"format": _json_rule, "regex": _regex_rule, "choice": _choice_rule}[constraint.kind]
    return [{"lark_grammar": _led("answer", lead, controls) + f"answer: {rule(text, blanks)}\n"}]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_depth(text: str) -> None:
    """Refuse grammars whose rules and groups could nest too deeply.

    `llguidance` goes through them by recursion, and from about 1,300 on it runs out of stack and takes the
    process with it.
    """
    if (count := text.count(":") + text.count("(")) > _MAX_PARTS:
        raise refused("grammar", f"it has {count} rules and groups; at most {_MAX_PARTS} are taken")


def _gbnf_rules(text: str) -> str:
    try:
        return lark_rules(text)
    except ValueError as error:
        raise refused("grammar", str(error)) from None
    except RecursionError:
        raise refused("grammar", "it is too deep") from None


def _json_rule(text: str, blanks: Mapping[str, Any]) -> str:
    try:
        return json_rule(json.loads(text), blanks)
    except RecursionError:
        raise refused("format", "it is too deep") from None
    except SchemaError as error:
        raise refused("format", str(error), error.where) from None
    except OptionError as error:
        raise refused("format", str(error)) from None


def _regex_rule(text: str, blanks: Mapping[str, Any]) -> str:
    from llguidance import regex_to_lark

    # The pattern describes the whole answer, so anchors add nothing.
    whole = text.removeprefix("^")
    if whole.endswith("$") and (len(whole) - len(whole[:-1].rstrip("\\"))) % 2:
        whole = whole[:-1]
    if not whole:
        raise refused("regex", "it is empty")
    return "/" + regex_to_lark(whole, use_ascii="d") + "/"


def _choice_rule(text: str, blanks: Mapping[str, Any]) -> str:
    return " | ".join(json.dumps(choice) for choice in json.loads(text))


def _led(answer: str, lead: AnswerPrefix | None, controls: Mapping[str, int]) -> str:
    """The rules before the answer."""
    if lead is None:
        return f"start: {answer}\n"
    header = " ".join(_items(lead.header, controls))
    closing = _items(lead.closing, controls)
    text = f"TEXT {closing[0]}" if _is_token(closing[0]) else "upto"
    rules = {
        "start": "thought" if lead.is_open else f"{header} {answer} | opened",
        "thought": f"{text} {' '.join(closing[1:])} behind",
        "behind": f"{header or 'BLANKS'} {answer}" + (" | opened" if lead.repeats else ""),
    }
    if not lead.is_open or lead.repeats:
        rules["opened"] = f"{' '.join(_items(lead.opening, controls))} thought"
    if _is_token(closing[0]):
        spelled = next(text for text in _split(lead.closing, controls) if text)
        rules["TEXT"] = f"/(?s:.*)/ & ~/(?s:.*){_escaped(spelled)}(?s:.*)/"
    else:
        rules["upto[lazy]"] = f"/(?s:.*){_escaped(json.loads(closing[0]))}/"
    if not header:
        rules["BLANKS"] = _BLANKS_BEHIND_THOUGHT
    return "".join(f"{name}: {body}\n" for name, body in rules.items())


def _items(text: str, controls: Mapping[str, int]) -> list[str]:
    """A text as control tokens and quoted pieces."""
    return [
        f"<[{controls[part]}]>" if part in controls else json.dumps(part) for part in _split(text, controls)
    ]


def _is_token(item: str) -> bool:
    return item.startswith("<[")


def _split(text: str, controls: Mapping[str, int]) -> list[str]:
    """A text cut around the control tokens that it spells."""
    parts: list[str] = []
    begin = position = 0
    while position < len(text):
        found = max((name for name in controls if text.startswith(name, position)), key=len, default="")
        if not found:
            position += 1
            continue
        parts += [text[begin:position], found]
        begin = position = position + len(found)
    return [part for part in [*parts, text[begin:]] if part]


def _escaped(text: str) -> str:
    """A text for a regular expression between slashes."""
    return "".join(letter if letter.isalnum() else f"\\x{{{ord(letter):x}}}" for letter in text)
