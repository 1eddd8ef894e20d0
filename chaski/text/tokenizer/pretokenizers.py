"""The splitting of text into words before byte pairs are merged: one row per name of `tokenizer.ggml.pre`.

The names are those of llama.cpp. The regular expressions are those that the model families publish in their
`tokenizer.json`, or llama.cpp's if it is the only source, in the syntax of the package `regex`. Each pattern
of a row is applied in order and cuts every piece further into matches and the gaps between them.
`docs/tokenizers.md` lists the cases in which llama.cpp produces other tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from chaski.errors import TokenizerError
from chaski.text.tokenizer.vocabulary import MAY_BE_KNOWN

if TYPE_CHECKING:
    import regex


class PreTokenizer(Struct, frozen=True):
    """One rule.

    ignore_merges  a word that is a token is not split
    nfc            text is first composed (Unicode NFC)
    add_bos        whether BOS is added if the file does not define it
    byte_level     tokens spell bytes as printable characters; otherwise they are text, with U+2581 for a
                   space
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False
    byte_level: bool = True

    def word_ends(self, text: str) -> NDArray[np.int64]:
        """Return the end of each word as an index into the text, in characters; words are never empty."""
        words = [text] if text else []
        for pattern in map(compiled, self.patterns):
            words = [part for word in words for part in _cut(pattern, word)]
        return np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))


@cache
def compiled(pattern: str) -> regex.Pattern[str]:
    """Compile the pattern with set operations and Unicode's classes."""
    import regex

    return regex.compile(pattern, regex.VERSION1)


def _cut(pattern: regex.Pattern[str], text: str) -> list[str]:
    """Return the matches and the gaps between them."""
    matches: list[str] = pattern.findall(text)
    has_gaps = sum(map(len, matches)) < len(text)
    return list(_with_gaps(pattern, text)) if has_gaps else matches


def _with_gaps(pattern: regex.Pattern[str], text: str) -> Iterator[str]:
    end = 0
    for match in pattern.finditer(text):
        begin, stop = match.span()
        if begin > end:
            yield text[end:begin]
        yield text[begin:stop]
        end = stop
    if end < len(text):
        yield text[end:]


def pretokenizer(name: str) -> PreTokenizer:
    """Return the pre-tokenizer of that name. Raises `TokenizerError` for an unknown name."""
    try:
        return PRETOKENIZERS[name]
    except KeyError:
        raise TokenizerError(
            f"tokenizer.ggml.pre is {name!r}, which is not one of the {len(PRETOKENIZERS)} known rules for "
            f"cutting text into words; another rule would give the model wrong tokens. {MAY_BE_KNOWN}"
        ) from None


_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"\s*[\r\n]+"
_SPACES = r"\s+(?!\S)|\s+"
_BLANKS = rf"{_LINES}|{_SPACES}"
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u30ff]+"
_HAN_HANGUL = "[\u0800-\u9fa5\uac00-\ud7ff]+"


def _any_of(*alternatives: str) -> str:
    return "|".join(alternatives)


def _words(
    digits: str,
    letters: str = r"[\p{L}]+",
    *,
    contraction: str = _CONTRACTION,
    signs: str = r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    blanks: str = _BLANKS,
) -> str:
    """Return the cl100k shape: contractions in any case, letters after one optional sign, digits, signs."""
    return _any_of(contraction, rf"[^\r\n\p{{L}}\p{{N}}]?{letters}", digits, signs, blanks)


def _cased_words(digits: str, suffix: str = "", letters: str = "", tail: str = r"[\r\n/]*") -> str:
    """Return the o200k shape: a word ends between lower and upper case; marks belong to words.

    letters: a class that contains the letters of words
    tail: a pattern for the characters that follow signs in one piece
    """
    upper, lower = (
        rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{letters}]",
        rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{letters}]",
    )
    lead = r"[^\r\n\p{L}\p{N}]?"
    return _any_of(
        f"{lead}{upper}*{lower}+{suffix}",
        f"{lead}{upper}+{lower}*{suffix}",
        digits,
        rf" ?[^\s\p{{L}}\p{{N}}]+{tail}",
        _BLANKS,
    )


def _deepseek(signs: str, lines: str) -> str:
    """Return DeepSeek V3's shape: a sign may begin a Latin word; letters after one optional sign; signs."""
    return _any_of(
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
        signs,
        lines,
        _SPACES,
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TRIPLE_DIGITS = r"\p{N}{1,3}"
_SINGLE_DIGIT = r"\p{N}"
_DIGITS = r"\p{N}+"
_ASCII_TRIPLES = "[0-9][0-9][0-9]"
_LINES_ALONE = r"[^\n]+|[\n]+"
_DEEPSEEK_V3 = _deepseek(r" ?[\p{P}\p{S}]+[\r\n]*", _LINES)
# Words with one optional leading space, without the punctuation of several scripts.
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
# Letters of the scripts with upper and lower case, spelled out as in DeepSeek LLM.
CASED_LETTERS = (
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
_GLM_STYLE = PreTokenizer((_words(_TRIPLE_DIGITS),), ignore_merges=True)
_QWEN_STYLE = PreTokenizer((_words(_SINGLE_DIGIT),))
_O200K = _cased_words(_TRIPLE_DIGITS, f"{_CONTRACTION}?")
_GPT4O_STYLE = PreTokenizer((_O200K,))
_DEEPSEEK_V3_STYLE = PreTokenizer((_TRIPLE_DIGITS, _HAN_KANA, _DEEPSEEK_V3))
_BLOOM_STYLE = PreTokenizer((_BLOOM,))
_BAILING_STYLE = PreTokenizer((_words(_SINGLE_DIGIT, blanks=rf"\s*[\r\n]|{_SPACES}"),))

# Three patterns that cut digits into groups of three from the right. From each group the published
# expression looks ahead to the end of the digits, which takes quadratic time; these give the same pieces.
# After the first group, groups of three from the left are groups of three from the right.
_NO_WORD = (
    "(?![[\\w\u00b2\u00b3\u00b9\u00bc-\u00be]--[\u200c\u200d]])"  # what Oniguruma's \b is after a digit
)
_AYA_STYLE = PreTokenizer((rf"(?<!\d)\d{{1,3}}(?=(?:\d{{3}})*+{_NO_WORD})", _O200K))
_THREES_FROM_THE_RIGHT = (r"\p{Nd}+", r"\A\p{Nd}{1,2}(?=(?:\p{Nd}{3})+\Z)", r"\p{Nd}{3}")
# Published as `(?=(\d{3})+(?!\d))`. Numerals that are not decimal digits (½) stay with the text before them,
# and so do one or two digits between two such numerals.
_FEW = r"(?:[\p{N}&&[^\d]]|(?<!\d)\d{1,2}(?!\d))"
_FIRST_DIGITS = r"(?<!\d)\d{1,2}(?=(?:\d{3})++(?!\d))"
_THREES_IN_A_NUMBER = _any_of(
    rf"\A{_FEW}*+{_FIRST_DIGITS}",
    rf"\A{_FEW}++",
    r"\G\d{3}(?=\d)",
    rf"\G\d{{3}}{_FEW}*+(?:{_FIRST_DIGITS})?",
)
_ASIAN_SCRIPTS = _any_of(
    "[\u4e00-\u9fff\u3040-\u30ff\u3400-\u4dbf\uf900-\ufaff\uff65-\uff9f\u2f00-\u2fdf]+",
    "[\u0e00-\u0e7f]+",
    "[\u0e80-\u0eff]+",
    "[\u1780-\u17ff]+",
    "[\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff]+",
    "[\uac00-\ud7af\u1100-\u11ff]+",
)
_GEMMA_STYLE = PreTokenizer((_LINES_ALONE,), add_bos=True, byte_level=False)


def _all(names: str, rule: PreTokenizer) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names.split(), rule)


PRETOKENIZERS: dict[str, PreTokenizer] = {
    # llama.cpp's rule for files that name none.
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, _DIGITS, _ASCII_TRIPLES)),
    **_all(
        "gpt-2 a.x-4.0 exaone4 gigachat granite-docling jais jina-de jina-es jina-v1-en jina-v2-code "
        "jina-v2-de jina-v2-es mellum phi-2 roberta-bpe trillion",
        _GPT2_STYLE,
    ),
    **_all("mpt olmo modern-bert", _GPT_NEOX_STYLE),
    "command-r": PreTokenizer(_DIGITS_THEN_GPT2.patterns, nfc=True),
    **_all("codeshell exaone mellum2 minerva-7b refact smollm starcoder", _DIGITS_THEN_GPT2),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, _ASCII_TRIPLES)),
    **_all("llama-bpe falcon-h1 falcon3 jina-v5-nano lfm2 llama-v3 llama3 midm-2.0 pixtral", _LLAMA3_STYLE),
    **_all("dbrx chatglm-bpe smaug-bpe", _CL100K_STYLE),
    **_all("glm4 glm5", _GLM_STYLE),
    "minicpm5": PreTokenizer((_TRIPLE_DIGITS, _words(_DIGITS)), ignore_merges=True),
    "jais-2": PreTokenizer(
        (
            _words(
                _TRIPLE_DIGITS,
                blanks=_any_of(
                    _LINES,
                    *(rf"\s{{{size}}}(?!\S)" for size in (512, 256, 128, 64, 32, 16, 8, 4, "1,2")),
                    r"\s",
                ),
            ),
        )
    ),
    "k2-horizon": PreTokenizer(
        (_words(_TRIPLE_DIGITS, "[\\p{L}\\p{M}\u200c\u200d]+"),), ignore_merges=True, add_bos=True
    ),
    **_all("deepseek-r1-qwen f2llmv2 grok-2 hunyuan kormo megrez solar-open stablelm2", _QWEN_STYLE),
    "qwen2": PreTokenizer(_QWEN_STYLE.patterns, nfc=True),
    "qwen35": PreTokenizer(
        (_words(_SINGLE_DIGIT, r"[\p{L}\p{M}]+", signs=r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),), nfc=True
    ),
    "laguna": PreTokenizer((_LINES_ALONE, _words(_SINGLE_DIGIT))),
    "ufakzeka": PreTokenizer((_words(_SINGLE_DIGIT).removeprefix(f"{_CONTRACTION}|"),)),
    **_all("bailingmoe bailingmoe2 llada-moe", _BAILING_STYLE),
    "seed-coder": PreTokenizer((_words(_SINGLE_DIGIT, signs=r" ?[^\s\p{L}\p{N}]+"),)),
    "exaone-moe": PreTokenizer(
        (
            _words(
                _SINGLE_DIGIT,
                r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                signs=r" ?[^\s\p{L}\p{N}]+[\r\n/]?",
                blanks=rf"\s*[\r\n]|{_SPACES}",
            ),
        )
    ),
    **_all("gpt-4o kanana2 llama4 minimax-m2 talkie", _GPT4O_STYLE),
    "granite-embed-multi-97m": PreTokenizer(_GPT4O_STYLE.patterns, ignore_merges=True),
    **_all("tiny_aya cohere2moe", _AYA_STYLE),
    "tekken": PreTokenizer((_cased_words(_SINGLE_DIGIT),), ignore_merges=True, add_bos=True),
    "kimi-k2": PreTokenizer(
        (
            _any_of(
                r"\p{Han}+",
                _cased_words(_TRIPLE_DIGITS, f"{_CONTRACTION}?", letters=r"&&[^\p{Han}]", tail=r"[\r\n]*"),
            ),
        )
    ),
    "youtu": PreTokenizer(
        (
            _any_of(
                "[\uac00-\ud7a3\u3131-\u318e]+",
                "[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+",
                "[\u3105-\u312f]+",
                _HAN_KANA,
            ),
            _cased_words(_SINGLE_DIGIT, f"{_CONTRACTION}?"),
        ),
        ignore_merges=True,
    ),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{CASED_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            # The published `\s+$` takes quadratic time on a long run of blanks that does not end the piece.
            r"(?<!\s)\s+$",
            _HAN_HANGUL,
            _SINGLE_DIGIT,
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_HANGUL, _SINGLE_DIGIT)),
    **_all("deepseek-v3 hunyuan-dense hy_v4 joyai-llm", _DEEPSEEK_V3_STYLE),
    "spark2_5": PreTokenizer(
        (_TRIPLE_DIGITS, _HAN_KANA, _deepseek(r" ?[\p{P}\p{S}]+", r"[\r\n]"), _SINGLE_DIGIT)
    ),
    "afmoe": PreTokenizer((*_THREES_FROM_THE_RIGHT, _ASIAN_SCRIPTS, _DEEPSEEK_V3)),
    # Only numbers are separated from adjacent text.
    "superbpe": PreTokenizer((_DIGITS, _THREES_IN_A_NUMBER)),
    **_all("bloom gpt3-finnish poro-chat", _BLOOM_STYLE),
    "viking": PreTokenizer((_BLOOM, _SINGLE_DIGIT)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "IMGIMG[A-I]{1,4}Z",
            r"[\t\n]|    |  ",
            _SINGLE_DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    **_all("gemma4 granite-embed-multi-311m", _GEMMA_STYLE),
    "sarvam-moe": PreTokenizer((_LINES_ALONE,), byte_level=False),
}
