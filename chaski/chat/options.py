"""The keyword options of a generation, and their checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from chaski.chat.adapter_choices import AdapterChoice, AdapterOption, adapter_choices
from chaski.chat.beams import BeamKeywords, BeamOptions, check_beams, is_search, taken_defaults
from chaski.errors import OptionError
from chaski.options import OPTIONS, REQUEST, Kind, from_json, is_number, names_of, none_below_zero
from chaski.receipts.wish import ReceiptWish
from chaski.sample import SamplingOptions
from chaski.sample.lark import AnswerFormat, AnswerPrefix, Constraint, ConstraintKind
from chaski.sample.options import SamplingKeywords

__all__ = [
    "CONSTRAINTS",
    "KNOWN_OPTIONS",
    "AnswerOptions",
    "GenerateOptions",
    "RequestOptions",
    "checked_options",
    "constraints_of",
    "merged_options",
    "parse_options",
]


class GenerateOptions(SamplingKeywords, BeamKeywords, total=False):
    """Options under the names that Ollama gave them; `chaski.options.OPTIONS` explains each."""

    num_predict: int
    reasoning_budget: int
    reasoning_budget_message: str
    num_keep: int
    truncate: bool
    shift: bool
    stop: str | Sequence[str]
    dry_sequence_breakers: Sequence[str]
    bad_words: Sequence[str]
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    draft_num_predict: int
    denoising_steps: int | None
    denoising_block: int
    format: AnswerFormat | type[Any] | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    format_thought: Mapping[str, Any] | None
    special: bool
    cache_salt: str
    no_store: bool
    adapter: AdapterOption | None
    prompt_logprobs: int | None
    receipt: bool | Mapping[str, Any] | None


class AnswerOptions(BeamOptions, frozen=True, kw_only=True):
    """Options that bound an answer and its prompt, and hold the answer to a form.

    `chaski.options.OPTIONS` explains each. `format_thought` is the text that may precede an answer with a
    form (`chaski.sample.lark.AnswerPrefix`), for instance {"opening": "<think>", "closing": "</think>"}.
    `special` is for parsers; the control token that ends the answer is not part of it. `cache_salt` keeps the
    time of an answer from revealing the prompts of others. The prompt of `prompt_logprobs` is computed whole,
    in small batches.
    """

    num_predict: int = -1
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""
    num_keep: int = 4
    truncate: bool = False
    shift: bool = True
    draft_num_predict: int = 7  # 11 gain more only where nearly all come true (docs/experiments.md)
    denoising_steps: int | None = None
    denoising_block: int = 32
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
    receipt: ReceiptWish | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            option = OPTIONS[name]
            _require(name, getattr(self, name), option.allows(getattr(self, name)), option.wanted)
        is_format = self.format is None or self.format == "json" or isinstance(self.format, Mapping)
        _require("format", self.format, is_format, '"json" or a JSON schema')
        _require("choice", self.choice, self.choice != (), OPTIONS["choice"].wanted)
        super().__post_init__()
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise OptionError(f"options {given[0]} and {given[1]} exclude each other; give one of them")
        if 0 <= self.num_predict < self.min_tokens:
            raise OptionError(
                f"option min_tokens is {self.min_tokens}; it must be at most num_predict, {self.num_predict}"
            )

    @property
    def constraint(self) -> Constraint | None:
        """The rule that the answer must follow, from the one option that gives it; None if none does."""
        found = ((name, getattr(self, name)) for name in CONSTRAINTS)
        return next((Constraint(name, value) for name, value in found if value is not None), None)


class RequestOptions(Struct, frozen=True):
    """generate: options of a generation, as `chaski.runner` takes them. The others are for loading.

    placing: the options on devices that are given, see `PLACING`.
    """

    generate: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None
    threads: int | None = None
    engine: str | None = None
    placing: Mapping[str, Any] = field(default_factory=dict)


PLACING = ("num_gpu", "main_gpu", "n_cpu_moe", "cpu_moe", "override_tensor")
"""The options that place a model's parts on devices."""
KNOWN_OPTIONS = frozenset(names_of(REQUEST))
"""The names that `checked_options` knows. `server/fields/audit.py` warns of others, or refuses them."""
_LISTS = {name for name, option in OPTIONS.items() if option.kind in (Kind.TEXTS, Kind.TOKENS)}
CONSTRAINTS: tuple[ConstraintKind, ...] = ("format", "regex", "choice", "grammar")
"""The options that constrain the form of an answer. They exclude each other."""
# No vocabulary is so large.
_MAX_DIGITS = 12
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
    if "receipt" in limits:
        limits["receipt"] = _receipt(limits["receipt"], limits.get("shift"))
    if is_search(limits) or limits.get("receipt") is not None:
        limits["shift"] = False  # a search ends at a full context, and so does an answer with a receipt
    sampling = {name: options[name] for name in _SAMPLING & options.keys()}
    if isinstance(sampling.get("logit_bias"), Mapping):
        sampling["logit_bias"] = {_token(token): bias for token, bias in sampling["logit_bias"].items()}
    found = AnswerOptions(**limits), SamplingOptions(**sampling)
    check_beams(found[0], options)
    return found


def checked_options(raw: Mapping[str, Any]) -> RequestOptions:
    """Check the `options` of a request; unknown ones are ignored. Raises OptionError or SamplingError."""
    values: dict[str, Any] = {
        name: adapter_choices(value) if name == "adapter" else from_json(name, value)
        for name, value in raw.items()
        if name in KNOWN_OPTIONS and value is not None
    }
    generate = {
        name: none_below_zero(name, value)
        for name, value in values.items()
        if value is not None and not OPTIONS[name].is_loading
    }
    parse_options(generate)
    return RequestOptions(
        generate,
        _at_least_0("num_ctx", values),
        _at_least_0("num_thread", values),
        values.get("engine"),
        {name: none_below_zero(name, values[name]) for name in PLACING if _is_set(values.get(name))},
    )


def _receipt(value: Any, shift: object) -> ReceiptWish | None:
    wish = ReceiptWish.read(value)
    if wish is not None and shift:
        raise OptionError("options receipt and shift exclude each other: what is forgotten is not verified")
    return wish


def _is_set(value: object) -> bool:
    """Return whether a placement is asked for. In Ollama -1 leaves the choice to the server."""
    return value is not None and not (is_number(value) and value < 0)


def merged_options(defaults: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a request over those of its model."""
    return {**taken_defaults(defaults, options), **options}


def constraints_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that constrain the form of the answer."""
    return {name: options[name] for name in CONSTRAINTS if options.get(name) is not None}


def _token(key: object) -> object:
    """Return the token id that a JSON key spells; return other values unchanged, for a later check."""
    is_whole = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < _MAX_DIGITS
    return int(key) if isinstance(key, str) and is_whole else key


def _at_least_0(name: str, values: Mapping[str, Any]) -> int | None:
    value = values.get(name)
    if value is not None and value < 0:
        raise OptionError(f"option {name} is {value}; it must be at least 0")
    return value or None


def _items(value: object) -> object:
    """Return a text or a list of items as a tuple; return other values unchanged, for a later check."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else value


def _require(name: str, value: object, is_valid: bool, wanted: str) -> None:
    if not is_valid:
        raise OptionError(f"option {name} is {value!r:.200}; it must be {wanted}")
