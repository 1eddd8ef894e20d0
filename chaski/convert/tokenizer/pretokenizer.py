"""Recognition of the pre-tokenizer in `tokenizer.json` by its structure, because GGUF stores only a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from chaski.convert.config import Config
from chaski.errors import UnsupportedError
from chaski.text.tokenizer.pretokenizers import PRETOKENIZERS

__all__ = ["recognise"]

# The preferred names, for rules that have several names.
_USUAL = ("gpt-2", "llama-bpe", "qwen2", "gpt-4o", "tekken", "smollm", "deepseek-r1-qwen", "deepseek-v3")
_GPT2 = PRETOKENIZERS["gpt-2"].patterns
_DIGITS = {True: r"\p{N}", False: r"\p{N}+"}


def recognise(tokenizer: Config, preferred: Mapping[str, str]) -> str:
    """Return the value of `tokenizer.ggml.pre` for a byte-level `tokenizer.json`.

    preferred: the family's own names, by the usual names.
    Raises UnsupportedError for a structure that has no name in GGUF.
    """
    patterns = tuple(_spelling(pattern) for pattern in _patterns(tokenizer))
    composed = _is_composed(tokenizer)
    same = [
        name
        for name, rule in PRETOKENIZERS.items()
        if tuple(map(_spelling, rule.patterns)) == patterns and rule.nfc == composed and rule.byte_level
    ]
    name = next((name for name in [*_USUAL, *same] if name in _with_merges(same, tokenizer)), None)
    if name is None:
        shown = " then ".join(patterns) or "nothing"
        extra = " after NFC" if composed else ""
        raise UnsupportedError(f"{tokenizer.path}: no pre-tokenizer of GGUF cuts text at {shown}{extra}")
    return preferred.get(name, name)


def _with_merges(names: list[str], tokenizer: Config) -> list[str]:
    """Return the pre-tokenizers that treat words which are tokens like the file.

    A word that is a token may be taken whole, without merges. This matters only for tokens that no merge
    produces; if merges produce all tokens, every pre-tokenizer qualifies.
    """
    model = tokenizer.part("model")
    whole = model.get("ignore_merges", bool, False)
    equal = [name for name in names if PRETOKENIZERS[name].ignore_merges == whole]
    return equal or (names if _all_are_merged(model) else [])


def _all_are_merged(model: Config) -> bool:
    made = {
        "".join(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model.list("merges")
    }
    return all(len(token) == 1 or token in made for token in model.part("vocab").values)


def _patterns(tokenizer: Config) -> Iterator[str]:
    for step in _steps(tokenizer.part("pre_tokenizer").values, "pretokenizers"):
        kind = step.get("type")
        if kind == "Split" and _isolates(step) and isinstance(step.get("pattern", {}).get("Regex"), str):
            yield step["pattern"]["Regex"]
        elif kind == "Digits":
            yield _DIGITS[step.get("individual_digits") is True]
        elif kind == "ByteLevel" and not step.get("add_prefix_space"):
            yield from _GPT2 if step.get("use_regex", True) else ()
        else:
            raise UnsupportedError(
                f"{tokenizer.path}: the pre-tokenizer step {step!r:.200} cannot be converted"
            )


def _isolates(step: Mapping[str, Any]) -> bool:
    """Return whether a split keeps the matches of its pattern as separate words."""
    return (step.get("behavior"), step.get("invert", False)) in (("Isolated", False), ("Removed", True))


def _is_composed(tokenizer: Config) -> bool:
    steps = [step.get("type") for step in _steps(tokenizer.part("normalizer").values, "normalizers")]
    if steps not in ([], ["NFC"]):
        raise UnsupportedError(
            f"{tokenizer.path}: the normalizer {', '.join(map(str, steps))} cannot be converted"
        )
    return bool(steps)


def _steps(step: Mapping[str, Any], inner: str) -> Iterator[Mapping[str, Any]]:
    """Yield the step, or the steps of a sequence."""
    if step.get("type") == "Sequence":
        for part in step.get(inner) or []:
            yield from _steps(part, inner)
    elif step:
        yield step


def _spelling(pattern: str) -> str:
    """Normalize a character class that contains a single property."""
    return pattern.replace(r"[\p{L}]", r"\p{L}")
