"""The guide's tokenizer: byte-level BPE in the manner of Llama 3, trained on the guide's own text.

The pieces before merging are those that `tokenizer.ggml.pre = "llama-bpe"` names: the GGUF file says it all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from tools.guide.rewording import LEXICON, reword
from tools.guide.topics import ASSISTANT, BOS, END, SYSTEM, USER, Topic, unsure

__all__ = ["SIZE", "SPECIAL", "merges", "token_strings", "train_tokenizer", "with_dropout", "with_pieces"]

SIZE = 3072
SPECIAL = (BOS, END, SYSTEM, USER, ASSISTANT)

_LLAMA3_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(topics: Sequence[Topic], rng: random.Random) -> Tokenizer:
    """Merges learned from the answers and from re-worded questions; the special tokens come last."""
    tokenizer = with_pieces(BPE(ignore_merges=True))
    trainer = BpeTrainer(
        vocab_size=SIZE - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(topics, rng), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    assert tokenizer.get_vocab_size() == SIZE, "the text is too short for so many tokens"
    return tokenizer


def with_dropout(tokenizer: Tokenizer, chance: float) -> Tokenizer:
    """The same vocabulary with merges left out by chance: words in unusual parts (Provilkov et al. 2020)."""
    state = json.loads(tokenizer.to_str())
    state["model"] |= {"dropout": chance, "ignore_merges": False}
    return Tokenizer.from_str(json.dumps(state))


def token_strings(tokenizer: Tokenizer) -> list[str]:
    """All tokens in the order of their ids, in the byte alphabet of GPT-2."""
    return [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]


def merges(tokenizer: Tokenizer) -> list[str]:
    """The merges as "left right", most important first."""
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def with_pieces(model: BPE) -> Tokenizer:
    """A tokenizer that cuts text into the pieces of Llama 3 and gives their bytes to `model`."""
    tokenizer = Tokenizer(model)
    split = pre_tokenizers.Split(Regex(_LLAMA3_PIECES), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _corpus(topics: Sequence[Topic], rng: random.Random) -> Iterator[str]:
    yield LEXICON
    for topic in topics:
        yield from [topic.answer, topic.answer, topic.answer, unsure(topic.page)]
        for wording in topic.wordings:
            yield wording
            yield from (reword(wording, rng) for _ in range(4))
