"""How text is cut into words before byte-level merges: one row for each name in `tokenizer.ggml.pre`.

The regular expressions are those that the model families publish in their `tokenizer.json` (syntax and
Unicode classes of Oniguruma). Each pattern of a row is applied in turn and cuts every piece further into
matches and the gaps between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaski.errors import TokenizerError


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`ignore_merges`: a word that is a token is taken whole. `nfc`: text is first composed (Unicode NFC).
    `add_bos`: what files mean that do not say whether BOS is added."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


def pretokenizer(name: str) -> PreTokenizer:
    """The pre-tokenizer of that name; an unknown one is a `TokenizerError` that lists the known names."""
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        known = ", ".join(sorted(PRETOKENIZERS))
        raise TokenizerError(f"tokenizer.ggml.pre is {name!r}, which is unknown; known are {known}") from None


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u30ff]+"
_HAN_HANGUL = "[\u0800-\u9fa5\uac00-\ud7ff]+"


def _any_of(*alternatives: str) -> str:
    return "|".join(alternatives)


def _words(digits: str, letters: str = r"\p{L}") -> str:
    """The cl100k shape: contractions in any case, letters with one character before them, digits, signs."""
    return _any_of(
        _CONTRACTION,
        rf"[^\r\n\p{{L}}\p{{N}}]?[{letters}]+",
        digits,
        rf" ?[^\s{letters}\p{{N}}]+[\r\n]*",
        _BLANKS,
    )


def _cased_words(digits: str, suffix: str = "") -> str:
    """The o200k shape: a word ends where lower case turns to upper case; marks belong to words."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return _any_of(
        f"{lead}{upper}*{lower}+{suffix}",
        f"{lead}{upper}+{lower}*{suffix}",
        digits,
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        _BLANKS,
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TRIPLE_DIGITS = r"\p{N}{1,3}"
_SINGLE_DIGIT = r"\p{N}"

_DEEPSEEK_V3 = _any_of(
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
    r" ?[\p{P}\p{S}]+[\r\n]*",
    _BLANKS,
)
# Letters of the scripts with upper and lower case, as DeepSeek LLM spells them out.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)

_GPT2_STYLE = PreTokenizer((_GPT2,))
_GPT_NEOX_STYLE = PreTokenizer((_GPT2,), nfc=True)
_DIGITS_THEN_GPT2 = PreTokenizer((_SINGLE_DIGIT, _GPT2))
_LLAMA3_STYLE = PreTokenizer((_words(_TRIPLE_DIGITS),), ignore_merges=True, add_bos=True)
_CL100K_STYLE = PreTokenizer((_words(_TRIPLE_DIGITS),))
_QWEN_STYLE = PreTokenizer((_words(_SINGLE_DIGIT),))
_GPT4O_STYLE = PreTokenizer((_cased_words(_TRIPLE_DIGITS, f"{_CONTRACTION}?"),))
_DEEPSEEK_V3_STYLE = PreTokenizer((_TRIPLE_DIGITS, _HAN_KANA, _DEEPSEEK_V3))

PRETOKENIZERS: dict[str, PreTokenizer] = {
    "default": _GPT2_STYLE,
    "gpt-2": _GPT2_STYLE,
    "exaone4": _GPT2_STYLE,
    "phi-2": _GPT2_STYLE,
    "mpt": _GPT_NEOX_STYLE,
    "olmo": _GPT_NEOX_STYLE,
    "command-r": PreTokenizer(_DIGITS_THEN_GPT2.patterns, nfc=True),
    "exaone": _DIGITS_THEN_GPT2,
    "minerva-7b": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "falcon3": _LLAMA3_STYLE,
    "lfm2": _LLAMA3_STYLE,
    "llama-bpe": _LLAMA3_STYLE,
    "llama-v3": _LLAMA3_STYLE,
    "llama3": _LLAMA3_STYLE,
    "chatglm-bpe": _CL100K_STYLE,
    "dbrx": _CL100K_STYLE,
    "glm4": PreTokenizer(_CL100K_STYLE.patterns, ignore_merges=True),
    "smaug-bpe": _CL100K_STYLE,
    "deepseek-r1-qwen": _QWEN_STYLE,
    "grok-2": _QWEN_STYLE,
    "hunyuan": _QWEN_STYLE,
    "megrez": _QWEN_STYLE,
    "qwen2": PreTokenizer(_QWEN_STYLE.patterns, nfc=True),
    "stablelm2": _QWEN_STYLE,
    "qwen35": PreTokenizer((_words(_SINGLE_DIGIT, r"\p{L}\p{M}"),), nfc=True),
    "laguna": PreTokenizer((r"[^\n]+|[\n]+", _words(_SINGLE_DIGIT))),
    "gpt-4o": _GPT4O_STYLE,
    "llama4": _GPT4O_STYLE,
    "tekken": PreTokenizer((_cased_words(_SINGLE_DIGIT),), ignore_merges=True, add_bos=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_CASED_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            # The published `\s+$` takes quadratic time on a long run of blanks that does not end the piece.
            r"(?<!\s)\s+$",
            _HAN_HANGUL,
            _SINGLE_DIGIT,
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, _SINGLE_DIGIT)),
    "deepseek-v3": _DEEPSEEK_V3_STYLE,
    "hunyuan-dense": _DEEPSEEK_V3_STYLE,
}
