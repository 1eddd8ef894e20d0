"""`OPTIONS`: the table of all options of an answer and of loading a model.

A row states the type, the range and the meaning of an option, and where it may be set. The checks of Python
calls, requests and Modelfiles, the parameters of the chat, the fields of the routes, and docs/options.md are
derived from it. The fields of `SamplingOptions` and `AnswerOptions`, which have the same names, contain the
default values.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Literal, TypeAlias, TypeGuard

from msgspec import Struct

from chaski.errors import OptionError
from chaski.names import check_engine

__all__ = [
    "FIELDS",
    "MAX_TOP_LOGPROBS",
    "MESSAGES",
    "MODELFILE",
    "OPTIONS",
    "REQUEST",
    "Kind",
    "Option",
    "Place",
    "from_json",
    "is_integer",
    "is_number",
    "names_of",
    "nearest",
    "none_below_zero",
]

MAX_TOP_LOGPROBS = 20

MAX_ITEMS = 4096
"""Texts of `choice`, or tokens of `stop_token_ids`."""
MAX_TEXTS = 1024
MAX_CHARACTERS = 65_536
"""The most characters of all stop texts, bad words or sequence breakers of a request together."""
_MAX_STOPS = 64
_MAX_BIASES = 4096

Place: TypeAlias = Literal["Modelfile", "options", "field", "messages"]
MODELFILE: Place = "Modelfile"
"""A parameter of Modelfiles."""
REQUEST: Place = "options"
"""An entry of `options` in a request."""
FIELDS: Place = "field"
"""A field of OpenAI's routes."""
MESSAGES: Place = "messages"
"""A field of Anthropic's routes, as a number."""
_EVERYWHERE: tuple[Place, ...] = ("Modelfile", "options", "field")


class Kind(Enum):
    """The type of an option's values. `OTHER` has a check of its own."""

    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    TEXT = "text"
    TEXTS = "texts"
    TOKENS = "token ids"
    OTHER = "other"


class Option(Struct, frozen=True):
    """A row of the table.

    kind              type of the values
    meaning           what the option does, in a line
    least, most       smallest and largest value of a number, or the most items of a list; None for no bound
    is_above          the smallest value itself is not allowed
    none              meaning of None, which is every number below 0 in requests and Modelfiles; empty if None
                      is not allowed
    is_clamped        requests and Modelfiles may exceed the range, as in Ollama, and get its end
    places            where the option may be set in addition to Python
    topic             line of the chat's help that lists the option; empty if the chat cannot set it
    is_loading        the option is one of loading a model
    needs_all_logits  values that ask for something need all logits, not only the top ones
    neutral           values that ask for nothing, if a beam search refuses the others; None if it takes all
    openai            default on OpenAI's routes; None if it is that of the other routes
    llama_cpp         name on llama.cpp's /completion and /infill; empty if they do not take the option
    """

    kind: Kind
    meaning: str
    least: float | None = None
    most: float | None = None
    is_above: bool = False
    none: str = ""
    is_clamped: bool = False
    places: tuple[Place, ...] = _EVERYWHERE
    topic: str = ""
    is_loading: bool = False
    needs_all_logits: bool = False
    neutral: tuple[object, ...] | None = None
    openai: float | None = None
    llama_cpp: str = ""

    def allows(self, value: object) -> bool:
        """Return whether a value has the type and lies in the range."""
        if value is None:
            return bool(self.none)
        match self.kind:
            case Kind.INTEGER:
                return is_integer(value) and self._is_in_range(value)
            case Kind.NUMBER:
                return is_number(value) and self._is_in_range(value)
            case Kind.FLAG:
                return isinstance(value, bool)
            case Kind.TEXT:
                return isinstance(value, str) and (bool(value) or not self.none)
            case Kind.TEXTS:
                return _are_texts(value) and len(value) <= (self.most or MAX_TEXTS) and self._is_short(value)
            case Kind.TOKENS:
                return (
                    isinstance(value, tuple)
                    and len(value) <= MAX_ITEMS
                    and all(is_integer(token) and token >= 0 for token in value)
                )
            case Kind.OTHER:
                return True

    @property
    def wanted(self) -> str:
        """The allowed values, as a message says them."""
        match self.kind:
            case Kind.INTEGER | Kind.NUMBER:
                found = self._wanted_number()
            case Kind.FLAG:
                found = "True or False"
            case Kind.TEXT:
                found = "a text"
            case Kind.TEXTS if self.most:
                found = f"a list of 1 to {self.most:.0f} texts, none of them empty"
            case Kind.TEXTS:
                found = (
                    f"a text, or a list of at most {MAX_TEXTS} texts with {MAX_CHARACTERS} characters "
                    "together, none of them empty"
                )
            case Kind.TOKENS:
                found = "a list of token ids"
            case Kind.OTHER:
                found = "another value"
        return f"{found}, or None for {self.none}" if self.none else found

    def _wanted_number(self) -> str:
        noun = (
            "an integer"
            if self.kind is Kind.INTEGER
            else "a number"
            if self.most is not None
            else "a finite number"
        )
        if self.least is None:
            return noun
        least = f"{self.least:g}"
        if self.most is not None:
            return f"{noun} from {least} to {_number_text(self.most)}"
        return f"{noun} above {least}" if self.is_above else f"{noun} of at least {least}"

    def _is_in_range(self, value: Any) -> bool:
        if self.least is not None and (value < self.least or (self.is_above and value == self.least)):
            return False
        return self.most is None or value <= self.most

    def _is_short(self, texts: Iterable[str]) -> bool:
        return bool(self.most) or sum(map(len, texts)) <= MAX_CHARACTERS


def from_json(name: str, value: Any) -> Any:
    """Return the value that a request gives an option, None for one without effect.

    A number is clamped as `nearest` does. Raises OptionError for a value of another type in JSON.
    """
    is_finite = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
    match OPTIONS[name].kind:
        case Kind.INTEGER:
            _require_type(is_finite, name, "of type integer")
            # Ollama takes every other negative number for no limit.
            return -1 if name == "num_predict" and value <= -3 else int(value)
        case Kind.NUMBER:
            _require_type(is_finite, name, "of type float32")
            return nearest(name, float(value))
        case Kind.FLAG:
            _require_type(isinstance(value, bool), name, "of type boolean")
            return None if name == "use_mmap" else value
        case Kind.TEXT:
            _require_type(isinstance(value, str), name, "of type string")
            return value or None
        case Kind.TEXTS:
            return _json_items(name, [value] if isinstance(value, str) else value, str, "strings")
        case Kind.TOKENS:
            return _json_items(name, value, int, "integers")
        case Kind.OTHER:
            return _other(name, value)


def _json_items(name: str, items: Any, kind: type, wanted: str) -> list[Any]:
    _require_type(isinstance(items, list), name, "of type array")
    _require_type(all(type(item) is kind for item in items), name, f"of an array of {wanted}")
    if name == "stop":
        _require_type(len(items) <= _MAX_STOPS, name, f"an array of at most {_MAX_STOPS} strings")
        return [text for text in items if text]
    return list(items)


def _other(name: str, value: Any) -> Any:
    if name == "engine":
        return check_engine(value)
    if name == "logit_bias":
        is_small = isinstance(value, Mapping) and len(value) <= _MAX_BIASES
        _require_type(is_small, name, f"an object of at most {_MAX_BIASES} tokens")
        return dict(value)
    return value


def _require_type(condition: bool, name: str, wanted: str) -> None:
    if not condition:
        raise OptionError(f'option "{name}" must be {wanted}')


def nearest(name: str, value: Any) -> Any:
    """Clamp a number to the range of its option, if the option allows it. Other values stay as they are."""
    option = OPTIONS.get(name)
    if option is None or not option.is_clamped or not is_number(value):
        return value
    return min(max(value, -math.inf if option.least is None else option.least), option.most or math.inf)


def none_below_zero(name: str, value: Any) -> Any:
    """Return None for a number below 0 if the option allows None. In Ollama such a number means the same."""
    option = OPTIONS[name]
    is_below = option.kind is Kind.INTEGER and bool(option.none) and is_number(value) and value < 0
    return None if is_below else value


def names_of(place: Place, *kinds: Kind) -> tuple[str, ...]:
    """Return the names of the options that a place takes, of the given kinds or of all."""
    return tuple(
        name
        for name, option in OPTIONS.items()
        if place in option.places and (not kinds or option.kind in kinds)
    )


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer, and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number, and no truth value."""
    # The comparison is false for NaN and, unlike math.isfinite, works for an integer of any size.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _are_texts(value: object) -> TypeGuard[tuple[str, ...]]:
    return isinstance(value, tuple) and all(isinstance(text, str) and text for text in value)


def _number_text(number: float) -> str:
    return "2**64 - 1" if number == 2**64 - 1 else f"{number:g}"


_I, _N, _F = Kind.INTEGER, Kind.NUMBER, Kind.FLAG
_LOADED: tuple[Place, ...] = ("Modelfile", "options")
_OFTEN: tuple[Place, ...] = (*_EVERYWHERE, MESSAGES)

# fmt: off
OPTIONS: dict[str, Option] = {
    # The length of an answer, and its end.
    "num_predict": Option(_I,
        "tokens of the answer at most; -1: until the model ends, at most ten contexts; -2: until the "
        "context is full",
        least=-2, places=_LOADED, topic="how much", llama_cpp="n_predict"),
    "min_tokens": Option(_I,
        "number of tokens before which neither end tokens nor stop texts end the answer",
        least=0, topic="how much", neutral=(0,)),
    "reasoning_budget": Option(_I,
        "tokens of thoughts at most, after which the answer begins; 0: no thoughts; -1: no limit",
        least=-1, topic="thinking", neutral=(-1,)),
    "reasoning_budget_message": Option(Kind.TEXT,
        "text at the end of a thought that `reasoning_budget` ended",
        topic="thinking"),
    "num_ctx": Option(_I,
        "tokens of the context; 0 leaves the choice to chaski",
        least=0, topic="how much", is_loading=True),
    "num_keep": Option(_I,
        "tokens at the beginning that `truncate` and `shift` keep; BOS is always kept",
        least=0, topic="how much", llama_cpp="n_keep"),
    "truncate": Option(_F, "shorten a prompt that is longer than the context", places=()),
    "shift": Option(_F,
        "drop half of the tokens after `num_keep` when the context is full, instead of ending",
        places=(), neutral=(False,)),
    "stop": Option(Kind.TEXTS, "texts that end the answer", topic="where it ends", llama_cpp="stop"),
    "stop_token_ids": Option(Kind.TOKENS, "token ids that end the answer", topic="where it ends"),
    "ignore_eos": Option(_F, "never choose the model's own end tokens", topic="where it ends",
        llama_cpp="ignore_eos"),
    "include_stop_str_in_output": Option(_F,
        "include the stop text, or the text of the stop token, in the answer",
        topic="where it ends"),
    # The choice of a token.
    "temperature": Option(_N,
        "higher values vary answers more, since it divides the logits; 0 takes the most likely token",
        least=0, is_clamped=True, places=_OFTEN, topic="choosing", neutral=(0,), openai=1.0,
        llama_cpp="temperature"),
    "seed": Option(_I,
        "makes answers repeatable: the same seed draws the same tokens",
        least=0, most=2**64 - 1, none="a fresh one", topic="choosing", neutral=(None,), llama_cpp="seed"),
    "top_k": Option(_I,
        "keep this many of the most likely tokens; 0 or less keeps all",
        places=_OFTEN, topic="choosing", neutral=(0,), llama_cpp="top_k"),
    "top_p": Option(_N,
        "keep the most likely tokens until their probability exceeds this; 1 keeps all",
        least=0, most=1, is_clamped=True, places=_OFTEN, topic="choosing", neutral=(1,), openai=1.0,
        llama_cpp="top_p"),
    "min_p": Option(_N,
        "drop tokens below this share of the top token's probability",
        least=0, most=1, is_clamped=True, topic="choosing", neutral=(0,), llama_cpp="min_p"),
    "typical_p": Option(_N,
        "keep the tokens whose surprisal is nearest to the mean until their probability exceeds this; 1 "
        "keeps all",
        least=0, most=1, is_clamped=True, topic="choosing", neutral=(1,), llama_cpp="typical_p"),
    "top_n_sigma": Option(_N,
        "drop tokens whose logit is more than this many standard deviations below the top one; 0 or less "
        "keeps all",
        topic="choosing", needs_all_logits=True, neutral=(-1, 0), llama_cpp="top_n_sigma"),
    "xtc_probability": Option(_N,
        "probability of excluding the top tokens",
        least=0, most=1, topic="choosing", neutral=(0,), llama_cpp="xtc_probability"),
    "xtc_threshold": Option(_N,
        "probability from which on `xtc_probability` excludes tokens, except for the least likely one",
        least=0, most=1, topic="choosing", llama_cpp="xtc_threshold"),
    "bad_words": Option(Kind.TEXTS,
        "texts whose tokens the answer never completes, as they stand and after a space",
        topic="choosing", neutral=((), [])),
    "logit_bias": Option(Kind.OTHER,
        "number from -100 to 100 by token id that is added to its logit before all else",
        places=("options", "field"), needs_all_logits=True, neutral=({},), llama_cpp="logit_bias"),
    # Repetition.
    "repeat_last_n": Option(_I,
        "number of latest tokens that the penalties look at",
        least=0, none="all tokens", topic="repetition", llama_cpp="repeat_last_n"),
    "repeat_penalty": Option(_N,
        "lowers tokens that occurred: divides positive and multiplies negative logits; 1 is off",
        least=0, is_above=True, topic="repetition", neutral=(1,), llama_cpp="repeat_penalty"),
    "repetition_penalty": Option(_N,
        "`repeat_penalty` for all tokens of prompt and answer, as in vLLM; 1 is off",
        least=0, is_above=True, topic="repetition", needs_all_logits=True, neutral=(1,)),
    "presence_penalty": Option(_N,
        "lowers tokens that occurred: subtracted once from the logit of each",
        topic="repetition", neutral=(0,), llama_cpp="presence_penalty"),
    "frequency_penalty": Option(_N,
        "lowers tokens that occurred often: subtracted from the logit of each for every time",
        topic="repetition", neutral=(0,), llama_cpp="frequency_penalty"),
    "dry_multiplier": Option(_N,
        "lowers tokens that would continue a repetition; 0 is off",
        least=0, topic="repetition", needs_all_logits=True, neutral=(0,), llama_cpp="dry_multiplier"),
    "dry_base": Option(_N,
        "growth of that for each further token of the repetition",
        least=1, topic="repetition", llama_cpp="dry_base"),
    "dry_allowed_length": Option(_I, "shorter repetitions are free", least=0, topic="repetition",
        llama_cpp="dry_allowed_length"),
    "dry_penalty_last_n": Option(_I,
        "number of latest tokens that are searched for repetitions",
        least=0, none="all tokens", topic="repetition", llama_cpp="dry_penalty_last_n"),
    "dry_sequence_breakers": Option(Kind.TEXTS,
        "texts across which no repetition reaches",
        topic="repetition", llama_cpp="dry_sequence_breakers"),
    # The form of an answer.
    "format": Option(Kind.OTHER,
        '"json", or a JSON schema that the answer follows',
        places=(), none="text", neutral=(None,)),
    "regex": Option(Kind.TEXT,
        "a regular expression that the whole answer matches",
        places=("options",), none="text", topic="form", neutral=(None,)),
    "choice": Option(Kind.TEXTS,
        "texts, one of which is the answer",
        most=MAX_ITEMS, places=("options",), none="text", topic="form", neutral=(None,)),
    "grammar": Option(Kind.TEXT,
        "a grammar that the answer follows, in Lark or GBNF",
        places=("options",), none="text", topic="form", neutral=(None,)),
    "format_thought": Option(Kind.OTHER,
        "text that may precede an answer with a form, such as a thought",
        places=(), none="no text", neutral=(None,)),
    "special": Option(_F, "include control tokens in the text", places=()),
    "adapter": Option(Kind.OTHER,
        "the LoRA adapters of the answer: a name, or a list of names and of pairs (name, scale)",
        places=("options",), topic="LoRA"),
    # What is returned.
    "logprobs": Option(_F, "return the log-probability of each token", places=()),
    "top_logprobs": Option(_I,
        "with `logprobs`: return those of this many most likely tokens",
        least=0, most=MAX_TOP_LOGPROBS, places=()),
    "prompt_logprobs": Option(_I,
        "return the log-probability of each token of the prompt, and of this many most likely ones",
        least=0, most=MAX_TOP_LOGPROBS, places=(), none="none", neutral=(None,)),
    "receipt": Option(Kind.OTHER,
        "return a receipt, by which others can verify the answer: true, or an object of `prompt` and "
        "`top_logits`",
        places=("options",), none="no receipt", neutral=(None, False)),
    # Beam search.
    "num_beams": Option(_I,
        "above 1: search for the answer with this many beams",
        least=1, most=1024, places=("options",)),
    "length_penalty": Option(_N,
        "a beam search divides the log-probability of an answer by its length to this power",
        least=-100, most=100, places=("options",)),
    "early_stopping": Option(Kind.OTHER,
        'True ends a beam search with `num_beams` answers; False when a better one is unlikely; "never" '
        'when no better one is possible',
        places=("options",)),
    # Denoising.
    "denoising_steps": Option(_I,
        "steps in which a diffusion model denoises the answer; fewer are faster and worse",
        least=1, none="one for each token of the answer", topic="speed"),
    "denoising_block": Option(_I,
        "tokens of the answer that a diffusion model denoises together",
        least=1, topic="speed"),
    # Speed, and loading.
    "num_thread": Option(_I,
        "number of threads; 0 leaves the choice to chaski",
        least=0, places=_LOADED, topic="speed", is_loading=True),
    "num_gpu": Option(_I,
        "number of trailing layers on GPUs, with the output as one; 0 uses no GPU, below 0 is the default",
        places=_LOADED, topic="speed", is_loading=True),
    "main_gpu": Option(_I, "number of the first GPU", places=_LOADED, topic="speed", is_loading=True),
    "n_cpu_moe": Option(_I,
        "number of leading layers whose experts stay on the processor, below 0 is the default",
        least=0, none="as few as needed", places=_LOADED, topic="speed", is_loading=True),
    "cpu_moe": Option(_F, "keep the experts of all layers on the processor",
        places=_LOADED, topic="speed", is_loading=True),
    "override_tensor": Option(Kind.TEXT,
        "devices of tensors by their names, PATTERN=DEVICE, as for llama.cpp's `-ot`",
        places=_LOADED, topic="speed", is_loading=True),
    "draft_num_predict": Option(_I,
        "tokens that speculation may propose at once; 0 switches it off",
        least=0, places=_LOADED, topic="speed"),
    "no_store": Option(_F, "keep nothing of the request on disk", topic="speed"),
    "cache_salt": Option(Kind.TEXT,
        "requests share cached prefixes only with those of the same salt",
        places=()),
    "num_batch": Option(_I,
        "taken from clients of Ollama, and of no effect",
        places=_LOADED, is_loading=True),
    "use_mmap": Option(_F, "taken from clients of Ollama, and of no effect", places=_LOADED, is_loading=True),
    "engine": Option(Kind.OTHER, "`native`, or `llama.cpp`", places=_LOADED, is_loading=True),
}
# fmt: on
