"""The guide's tokenizer: byte-level BPE in the manner of Llama 3, trained on the guide's own text.

Behind the tokens that text turns into come those of chats, and then those that only answers begin with.

The pieces before merging are those that `tokenizer.ggml.pre = "llama-bpe"` names: the GGUF file says it all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from tools.guide.rewording import LEXICON, reword
from tools.guide.topics import (
    ASSISTANT,
    BOS,
    EITHER,
    END,
    OR_ELSE,
    SYSTEM,
    USER,
    Topic,
    beginnings,
    doubt,
    unsure,
)

__all__ = [
    "TEXT_SIZE",
    "Vocabulary",
    "merges",
    "token_strings",
    "train_tokenizer",
    "with_dropout",
    "with_pieces",
]

TEXT_SIZE = 6144
"""So many tokens can text turn into."""

_LLAMA3_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


SPECIAL = (BOS, END, SYSTEM, USER, ASSISTANT)


class Vocabulary:
    """The tokenizer, and the tokens that no text turns into, whose ids come behind its own.

    tokens    all tokens in the order of their ids, in the byte alphabet of GPT-2
    topics    the ids of the tokens that begin the topics' answers
    pages     the id of the one that begins the answer that `page` may tell, for each topic
    either    the id of the one that two answers begin with
    """

    def __init__(self, tokenizer: Tokenizer, topics: Sequence[Topic]) -> None:
        self.tokenizer = tokenizer
        firsts, doubts = beginnings(topics), [doubt(topic.page) for topic in topics]
        texts = list(dict.fromkeys([EITHER, *firsts, *doubts]))
        id_of = {text: tokenizer.get_vocab_size() + index for index, text in enumerate(texts)}
        self.either = id_of[EITHER]
        self.topics = [id_of[text] for text in firsts]
        self.pages = [id_of[text] for text in doubts]
        self.tokens = [*token_strings(tokenizer), *map(_spelled, texts)]
        assert len(set(self.tokens)) == len(self.tokens), "a beginning is a token already"

    def rest(self, answer: str, beginning: str) -> list[int]:
        """The ids of an answer behind its first words."""
        ids: list[int] = self.tokenizer.encode(answer.removeprefix(beginning)).ids
        return ids


def _spelled(text: str) -> str:
    """A text as a token: each of its bytes as a letter of GPT-2's alphabet."""
    return "".join(
        piece for piece, _ in pre_tokenizers.ByteLevel(False, use_regex=False).pre_tokenize_str(text)
    )


def train_tokenizer(topics: Sequence[Topic], more: Iterable[str], rng: random.Random) -> Tokenizer:
    """Merges learned from the answers, from re-worded questions and from `more`; special tokens come last."""
    tokenizer = with_pieces(BPE(ignore_merges=True))
    trainer = BpeTrainer(
        vocab_size=TEXT_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*_corpus(topics, rng), *more], trainer)
    assert tokenizer.get_vocab_size() == TEXT_SIZE, "the text is too short for so many tokens"
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
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
    yield from [OR_ELSE] * 20
    for topic in topics:
        yield from [topic.answer, topic.answer, topic.answer, unsure(topic.page)]
        for wording in topic.wordings:
            yield wording
            yield reword(wording, rng)
