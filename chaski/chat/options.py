"""The keyword options of a generation, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from msgspec import Struct

from chaski.chat.adapters import AdapterChoice, AdapterOption, adapter_choices
from chaski.errors import OptionError
from chaski.sample import SamplingOptions
from chaski.sample.lark import AnswerFormat, AnswerPrefix, Constraint, ConstraintKind
from chaski.sample.options import MAX_TOP_LOGPROBS

__all__ = [
    "AnswerOptions",
    "GenerateOptions",
    "is_search",
    "merged_options",
    "parse_options",
    "require_whole",
]


class GenerateOptions(TypedDict, total=False):
    """Options under the names that Ollama gave them, explained by `AnswerOptions` and `SamplingOptions`."""

    num_predict: int
    num_keep: int
    truncate: bool
    shift: bool
    stop: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    repeat_last_n: int | None
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str]
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    bad_words: Sequence[str]
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    logit_bias: Mapping[int, float] | Mapping[str, float]
    seed: int | None
    draft_num_predict: int
    format: AnswerFormat | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    format_thought: Mapping[str, Any] | None
    special: bool
    cache_salt: str
    no_store: bool
    adapter: AdapterOption | None
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: int | None
    num_beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]


class AnswerOptions(Struct, frozen=True):
    """Options that bound an answer and its prompt, and hold the answer to a format.

    num_predict  tokens to generate at most; below 0 as many as the context holds, ten times that with
                 `shift`; with -2 nothing is shifted, and the answer ends where the context does
    num_keep     tokens at the beginning that `truncate` and `shift` keep; BOS is always kept
    truncate     drop tokens of a prompt that is longer than the context, instead of refusing it
    shift        forget half of what is behind num_keep when the context is full, instead of ending
    draft_num_predict  tokens that may be proposed, from the text so far or by a draft model, and computed at
                 once; the answer is the same, and sooner there if it repeats something; 0 switches it off
    format       "json", or a JSON schema that the answer follows; None for text
    regex        a regular expression that the whole answer matches, instead
    choice       texts one of which is the answer, instead
    grammar      a grammar that the answer follows, in Lark or GBNF, instead
    format_thought  the text that may stand before such an answer (see `chaski.sample.lark.AnswerPrefix`),
                 for instance a thought: {"opening": "<think>", "closing": "</think>"}
    special      control tokens are part of the text, for parsers; the one that ends the answer is not
    cache_salt   requests share the prompt cache only with those of the same salt, so that the time of an
                 answer does not reveal the prompts of others
    no_store     nothing of what is computed for the request is kept on disk
    adapter      the LoRA adapters that the text is computed with: the name of one, or a list of names and of
                 pairs (name, scale), which are applied in this order
    stop         texts that end the answer and are not part of it
    stop_token_ids  tokens that end the answer as well
    include_stop_str_in_output  the answer includes the stop text, or the text of the stop token, that ends it
    min_tokens   number of tokens before which neither end tokens nor stop texts end the answer
    ignore_eos   the model's own end tokens are never chosen; only a complete `format` ends all the same
    bad_words    texts whose tokens the answer never completes, at its start and behind a space
    dry_sequence_breakers  texts across which `dry_multiplier` counts no repetition
    prompt_logprobs  number of top log-probabilities to return with that of each token of the prompt; None
                 returns nothing. The whole prompt is then computed, in small batches
    num_beams    above 1 the answer is that of a beam search: so many texts grow together, and each step keeps
                 the most likely ones. Nothing is drawn; the answer ends where the context does; stop texts
                 cut answers that were found
    length_penalty  such a search divides the log-probability of an answer by its length to this power
    early_stopping  True ends it with `num_beams` answers; False when none that is open is likely to become
                 better; "never" when none can
    """

    num_predict: int = -1
    num_keep: int = 4
    truncate: bool = False
    shift: bool = True
    draft_num_predict: int = 7  # 11 gain more only where nearly all come true (docs/experiments.md)
    format: AnswerFormat | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    format_thought: AnswerPrefix | None = None
    special: bool = False
    cache_salt: str = ""
    no_store: bool = False
    adapter: tuple[AdapterChoice, ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    prompt_logprobs: int | None = None
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        _require("num_predict", self.num_predict, _is_integer(self.num_predict), "an integer")
        for name in ("num_keep", "draft_num_predict", "min_tokens"):
            count = getattr(self, name)
            _require(name, count, _is_integer(count) and count >= 0, "an integer of at least 0")
        for name in ("special", "truncate", "no_store", "shift", "ignore_eos", "include_stop_str_in_output"):
            _require(name, getattr(self, name), isinstance(getattr(self, name), bool), "True or False")
        _require("cache_salt", self.cache_salt, isinstance(self.cache_salt, str), "a text")
        is_format = self.format is None or self.format == "json" or isinstance(self.format, Mapping)
        _require("format", self.format, is_format, '"json" or a JSON schema')
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            _require(name, value, value is None or (isinstance(value, str) and bool(value)), "a text")
        choice = self.choice
        is_choice = choice is None or (_are_texts(choice) and bool(choice) and len(choice) <= MAX_CHOICES)
        _require("choice", choice, is_choice, f"a list of 1 to {MAX_CHOICES} texts, none of them empty")
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(f"options {given[0]} and {given[1]} exclude each other; give one of them")
        for name in ("stop", "bad_words", "dry_sequence_breakers"):
            texts = getattr(self, name)
            _require(name, texts, _are_texts(texts), "a text or a list of texts, none of them empty")
            is_short = len(texts) <= MAX_TEXTS and sum(map(len, texts)) <= MAX_CHARACTERS
            wanted = f"a list of at most {MAX_TEXTS} texts with {MAX_CHARACTERS} characters together"
            _require(name, texts, is_short, wanted)
        ids = self.stop_token_ids
        are_ids = isinstance(ids, tuple) and all(_is_integer(token) and token >= 0 for token in ids)
        _require("stop_token_ids", ids, are_ids and len(ids) <= MAX_CHOICES, "a list of token ids")
        if 0 <= self.num_predict < self.min_tokens:
            raise OptionError(
                f"option min_tokens is {self.min_tokens}; it must be at most num_predict, {self.num_predict}"
            )
        top = self.prompt_logprobs
        is_count = top is None or (_is_integer(top) and 0 <= top <= MAX_TOP_LOGPROBS)
        _require("prompt_logprobs", top, is_count, f"an integer from 0 to {MAX_TOP_LOGPROBS}")
        beams, penalty, early = self.num_beams, self.length_penalty, self.early_stopping
        is_width = _is_integer(beams) and 1 <= beams <= MAX_BEAMS
        _require("num_beams", beams, is_width, f"an integer from 1 to {MAX_BEAMS}")
        is_number = isinstance(penalty, int | float) and not isinstance(penalty, bool)
        is_power = is_number and abs(penalty) <= MAX_LENGTH_PENALTY
        wanted = f"a number from -{MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}"
        _require("length_penalty", penalty, is_power, wanted)
        is_choice = isinstance(early, bool) or early == "never"
        _require("early_stopping", early, is_choice, 'True, False or "never"')

    @property
    def constraint(self) -> Constraint | None:
        """The rule that the answer must follow, from the one option that gives it; None if none does."""
        found = ((name, getattr(self, name)) for name in _KINDS)
        return next((Constraint(name, value) for name, value in found if value is not None), None)


MAX_CHOICES = 4096
MAX_TEXTS = 1024
MAX_CHARACTERS = 65_536
"""The most characters of all stop texts, bad words or sequence breakers of a request together."""
MAX_BEAMS = 1024
MAX_LENGTH_PENALTY = 100
_LISTS = {"stop", "choice", "bad_words", "dry_sequence_breakers", "stop_token_ids"}
_KINDS: tuple[ConstraintKind, ...] = ("format", "regex", "choice", "grammar")
# No vocabulary is so large.
_MAX_DIGITS = 12
# The options that a beam search cannot have, with the values that ask for nothing.
_NOT_SEARCHED: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(
        ("temperature", "top_k", "min_p", "dry_multiplier", "xtc_probability", "min_tokens"), (0,)
    ),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (0,)),
    **dict.fromkeys(("top_p", "typical_p", "repeat_penalty", "repetition_penalty"), (1,)),
    **dict.fromkeys(("seed", "prompt_logprobs", "format_thought", *_KINDS), (None,)),
    "top_n_sigma": (-1, 0),
    "logit_bias": ({},),
    "bad_words": ((), []),
    "shift": (False,),
}
_LIMITS = set(AnswerOptions.__struct_fields__)
_SAMPLING = set(SamplingOptions.__struct_fields__)


def parse_options(options: Mapping[str, Any]) -> tuple[AnswerOptions, SamplingOptions]:
    """Check options by name and value. Raises OptionError, or SamplingError from the sampler's own."""
    unknown = options.keys() - _LIMITS - _SAMPLING
    if unknown:
        known = ", ".join(sorted(_LIMITS | _SAMPLING))
        raise OptionError(f"option {min(unknown)!r} is unknown; known: {known}")
    limits = {name: options[name] for name in _LIMITS & options.keys()}
    for name in _LISTS & limits.keys():
        limits[name] = _items(limits[name])
    if "adapter" in limits:
        limits["adapter"] = adapter_choices(limits["adapter"])
    if limits.get("format_thought") is not None:
        limits["format_thought"] = AnswerPrefix.read(limits["format_thought"])
    sampling = {name: options[name] for name in _SAMPLING & options.keys()}
    if isinstance(sampling.get("logit_bias"), Mapping):
        sampling["logit_bias"] = {_token(token): bias for token, bias in sampling["logit_bias"].items()}
    found = AnswerOptions(**limits), SamplingOptions(**sampling)
    if found[0].num_beams > 1:
        _require_searchable(options)
    else:
        for name, neutral in (("length_penalty", 1), ("early_stopping", False)):
            if options.get(name, neutral) != neutral:
                raise OptionError(f"option {name} is for a beam search; give num_beams above 1 with it")
    return found


def merged_options(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a request over those of its model, of which a beam search takes what it can."""
    whole = {**defaults, **options}
    if not is_search(whole):
        return whole
    return {name: value for name, value in whole.items() if name in options or name not in _NOT_SEARCHED}


def is_search(options: Mapping[str, Any]) -> bool:
    """Return whether options ask for a beam search."""
    return options.get("num_beams") not in (None, 1)


def require_whole(options: Mapping[str, Any]) -> None:
    """Raise OptionError for a beam search: its answers are known at its end, so they have no stream."""
    if is_search(options):
        raise OptionError("a beam search (num_beams) has no stream: its answers are known at its end")


def _require_searchable(options: Mapping[str, Any]) -> None:
    for name, off in _NOT_SEARCHED.items():
        if name in options and options[name] not in off:
            raise OptionError(
                f"option {name} is {options[name]!r:.80}; a beam search (num_beams) has no such thing"
            )
    if options.get("num_predict") == 0:
        raise OptionError("option num_predict is 0; a beam search (num_beams) needs at least one token")


def _token(key: object) -> object:
    """Return the token id of a key of JSON, which is a text; any other value as it is, to be refused."""
    is_number = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < _MAX_DIGITS
    return int(key) if isinstance(key, str) and is_number else key


def _items(value: object) -> object:
    """Return one text or several items as a tuple; anything else as it is, to be refused."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else value


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require(name: str, value: object, is_valid: bool, wanted: str) -> None:
    if not is_valid:
        raise OptionError(f"option {name} is {value!r:.200}; it must be {wanted}")
