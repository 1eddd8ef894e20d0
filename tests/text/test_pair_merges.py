"""Merging in the native core gives the ids of Hugging Face `tokenizers` for all merges."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from chaski.errors import TokenizerError
from chaski.text.tokenizer.bpe import ByteLevelBPE, PairEncoding, TextBPE
from chaski.text.tokenizer.pretokenizers import PreTokenizer
from chaski.text.tokenizer.vocabulary import read_vocabulary
from tests.text.token_fixtures import KEY

WORDS = Regex(r" ?[^ ]+| +")
BYTES = sorted(ByteLevel.alphabet())
NAMED_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def made(seed: int, characters: list[str], extra: list[str]) -> tuple[list[str], list[str]]:
    """Return a vocabulary of few characters, so that pairs overlap and tokens have several merges."""
    rng = random.Random(seed)
    tokens, merges = [*extra, *characters], []
    few = characters[:5]
    parts = list(few)
    for _ in range(120):
        left, right = rng.choice(parts), rng.choice(parts)
        if len(left + right) > 9:
            continue
        merges.append(f"{left} {right}")
        if left + right not in tokens:
            tokens.append(left + right)
        parts.append(left + right)
    rng.shuffle(merges)
    return tokens, [*merges, *merges[:3]]


def codec(kind: type[PairEncoding], tokens: list[str], merges: list[str], whole: bool) -> PairEncoding:
    vocabulary = read_vocabulary({KEY + "tokens": tokens}, default_add_bos=False)
    rules = PreTokenizer((r" ?[^ ]+| +",), ignore_merges=whole, byte_level=kind is ByteLevelBPE)
    return kind(vocabulary, merges, rules)


def ids_of_library(model: BPE, cuts: list[Any], text: str) -> list[int]:
    encoder = Tokenizer(model)
    encoder.pre_tokenizer = Sequence(cuts)
    ids: list[int] = encoder.encode(text, add_special_tokens=False).ids
    return ids


def pairs(merges: list[str]) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_bytes(seed: int, whole: bool) -> None:
    characters = ["a", "b", "c", "\u0120", "\u00c3", *(c for c in BYTES if c not in "abc\u0120\u00c3")]
    tokens, merges = made(seed, characters[:-9], [])  # some bytes have no token
    ids = {token: i for i, token in enumerate(tokens)}
    model = BPE(ids, pairs(merges), ignore_merges=whole)
    cuts = [Split(WORDS, "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    ours = codec(ByteLevelBPE, tokens, merges, whole)
    for text in texts(seed, "abc \u00e9\u4e2d\0"):
        assert ours.encode([text]) == [ids_of_library(model, cuts, text)]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_text(seed: int, whole: bool) -> None:
    tokens, merges = made(seed, ["a", "b", "\u4e2d", "\U0001f600", "\u2581"], NAMED_BYTES[:0xE0])
    ids = {token: i for i, token in enumerate(tokens)}
    model = BPE(ids, pairs(merges), ignore_merges=whole, byte_fallback=True)
    ours = codec(TextBPE, tokens, merges, whole)
    for text in texts(seed, "ab\u4e2d\U0001f600 \u00e9x\u5b57"):  # the last one has bytes without tokens
        spelled = text.replace(" ", "\u2581")
        assert ours.encode([text]) == [ids_of_library(model, [Split(WORDS, "isolated")], spelled)]


def texts(seed: int, characters: str) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(characters, k=rng.randrange(1, 60))) for _ in range(60)]


def test_a_word_of_a_million_bytes() -> None:
    ours = codec(ByteLevelBPE, [*BYTES, "aa", "aaaa"], ["a a", "aa aa"], False)
    ((*ids,),) = ours.encode(["a" * 1_000_001])
    assert ids == [257] * 250_000 + [BYTES.index("a")]


def test_the_first_fault_is_told() -> None:
    many = [f"{left} {right}" for left in "abcdefgh" for right in "abcdefgh"]
    tokens = [*BYTES, *(merge.replace(" ", "") for merge in many)]
    with pytest.raises(TokenizerError, match=r"merges\[40\] is 'f' and 'a', but 'fa' is not a token"):
        codec(ByteLevelBPE, [token for token in tokens if token != "fa"], many, False).encode(["x"])


FORKS = """
import os, random, sys
from chaski.text.tokenizer.bpe import ByteLevelBPE
from tests.text.test_pair_merges import BYTES, codec

rng = random.Random(1)
parts = sorted({"".join(rng.choices(BYTES, k=3)) for _ in range(60_000)})
tokens = [*BYTES, *{part[:2] for part in parts}, *parts]
merges = [*{f"{part[0]} {part[1]}" for part in parts}, *(f"{part[:2]} {part[2]}" for part in parts)]
begun = codec(ByteLevelBPE, tokens, merges, whole=False)
begun.prepare()
text = parts[7] + parts[11]
child = os.fork()
(ids,) = begun.encode([text])
if child == 0:
    os._exit(len(ids) % 100)
del begun
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(ids) % 100)
"""


def test_a_fork_while_merges_are_made_makes_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    child, parent = done.stdout.split()
    assert child == parent


def test_prepared_merges_have_the_same_faults() -> None:
    wrong = codec(ByteLevelBPE, BYTES, ["a b"], whole=False)
    wrong.prepare()
    for _ in range(2):
        with pytest.raises(TokenizerError, match="'ab' is not a token"):
            wrong.encode(["ab"])
