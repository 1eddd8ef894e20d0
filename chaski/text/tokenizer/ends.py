"""The tokens that end an answer: those that the metadata names, and those with a known spelling.

Converters assign arbitrary types to such tokens, so the type decides nothing. The spellings, and the
exceptions for combinations of them, are those of llama.cpp (its `llama-vocab.cpp`), and those with which
FunctionGemma and Apertus wait for the results of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct

from chaski.errors import TokenizerError
from chaski.formats.string_array import StringArray

__all__ = ["END_TEXTS", "FILL_IN_TEXTS", "MarkedTokens", "find_marked", "find_words"]

END_TEXTS = frozenset(
    {
        "</s>",
        "<EOT>",
        "_<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<start_function_response>",
        "<turn|>",
        "<|call|>",
        "<|calls|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<|tool_response>",
        "<|tools_suffix|>",
        "<｜end▁of▁sentence｜>",
        "[EOS]",
        "[EOT]",
        "[e~[",
    }
)
"""Spellings of tokens that end a turn."""

FILL_IN_TEXTS: Mapping[str, tuple[str, ...]] = {
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
"""Spellings of the tokens of fill-in-the-middle prompts, by role; a file may name the token of a role."""

_NAMED_ENDS = ("eos", "eot", "eom")
# An answer ends when the model begins another file or padding.
_ENDS_OF_FILL_IN = ("fim_pad", "fim_rep", "fim_sep")


class MarkedTokens(Struct, frozen=True):
    """ends: ids that end an answer. controls: ids of control tokens, regardless of their type in the file."""

    ends: frozenset[int]
    controls: frozenset[int]


def find_marked(
    tokens: Sequence[str], named: Mapping[str, int | None], listed: Sequence[int], words: Collection[int] = ()
) -> MarkedTokens:
    """Return the tokens that end an answer, and the control tokens.

    named: the ids in the metadata for `eos`, `eot`, `eom` and the roles of FILL_IN_TEXTS
    listed: the ids of `eos_token_ids`
    words: ids of ordinary text, regardless of their spelling

    Raises `TokenizerError` for a listed id that is not a token.
    """
    if not all(isinstance(token_id, int) and 0 <= token_id < len(tokens) for token_id in listed):
        raise TokenizerError(
            f"tokenizer.ggml.eos_token_ids is {str(listed)[:80]}: not all are ids of the {len(tokens)} tokens"
        )
    unnamed = {role: texts for role, texts in FILL_IN_TEXTS.items() if named.get(role) is None}
    found = _ids_of(tokens, END_TEXTS.union(*unnamed.values()), words)
    by_role = {role: _first(found, texts) for role, texts in unnamed.items()}
    no_ends = _no_ends(found.keys() & END_TEXTS)
    ends = {token_id for text in END_TEXTS - no_ends for token_id in found.get(text, ())}
    controls = ends.union(token_id for token_id in by_role.values() if token_id is not None)
    roles = {**named, **by_role}
    ends.update(
        token_id for role in (*_NAMED_ENDS, *_ENDS_OF_FILL_IN) if (token_id := roles.get(role)) is not None
    )
    ends.update(listed)
    ends.difference_update(token_id for text in no_ends for token_id in found[text])
    return MarkedTokens(frozenset(ends), frozenset(controls))


def _no_ends(present: Collection[str]) -> frozenset[str]:
    """Return the spellings in a vocabulary that, in combination with others, do not end a turn."""
    calls = "<|call|>" in present or "<|calls|>" in present
    # In the formats of gpt-oss and Solar this token ends a message, and a turn has several messages.
    ends_message = calls and ("<|return|>" in present or "<|flush|>" in present)
    dropped = {"<|end|>"} if ends_message else set()
    # In Gemma 4's vocabulary this is an HTML tag.
    dropped |= {"</s>"} if "<|tool_response>" in present else set()
    return frozenset(dropped.intersection(present))


def _first(found: Mapping[str, Sequence[int]], texts: Sequence[str]) -> int | None:
    return next((found[text][0] for text in texts if text in found), None)


def find_words(
    tokens: Sequence[str], merges: Sequence[str], is_normal: Callable[[int], bool]
) -> frozenset[int]:
    """Return the normal tokens that are spelled like special ones but are text, since merges produce them.

    In the vocabulary of Qwen, for instance, `</s>` is an HTML tag in text.
    """
    spelled = _ids_of(tokens, END_TEXTS.union(*FILL_IN_TEXTS.values()))
    normal = {text: normal for text, ids in spelled.items() if (normal := list(filter(is_normal, ids)))}
    if not normal:
        return frozenset()
    # A merge is written as its two parts with a space in between.
    near = _near(merges, {f"{text} " for text in normal})
    made = {word for i in near if (word := merges[i].replace(" ", "", 1)) in normal}
    return frozenset(token_id for text in made for token_id in normal[text])


def _ids_of(
    tokens: Sequence[str], texts: Collection[str], words: Collection[int] = ()
) -> dict[str, list[int]]:
    """Return, by text, the ids of tokens spelled as one of `texts`, except those in `words`."""
    found: dict[str, list[int]] = {}
    for token_id in _near(tokens, texts):
        if (token := tokens[token_id]) in texts and token_id not in words:
            found.setdefault(token, []).append(token_id)
    return found


def _near(strings: Sequence[str], texts: Collection[str]) -> Sequence[int]:
    """Return indices that include all strings with the length and the first byte of one of `texts`."""
    found: Sequence[int] = range(len(strings))
    return strings.beginning_as(texts).tolist() if isinstance(strings, StringArray) else found
