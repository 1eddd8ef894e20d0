"""A bag of words: the network of the guide without positions, to begin the training with.

From random weights, the network takes thousands of steps until it looks at the question at all. As a bag of
words, which is learned in a minute, it begins with embeddings of words and with rows for the topics.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from tools.guide.network import Network
from tools.guide.pool import Pool
from tools.guide.topics import render

__all__ = ["Bag", "begin_as_bag", "train_bag"]

ROWS, RATE, DROPOUT = 512, 3e-3, 0.1


class Bag(nn.Module):
    """Ids (rows, length) to logits (rows, topics): the mean of normed embeddings. An id of -1 is padding."""

    def __init__(self, vocab_size: int, hidden_size: int, num_topics: int, eps: float) -> None:
        super().__init__()
        self.words = nn.Parameter(0.05 * torch.randn(vocab_size, hidden_size))
        self.topics = nn.Parameter(0.05 * torch.randn(num_topics, hidden_size))
        self.eps = eps

    def forward(self, ids: Tensor) -> Tensor:
        is_there = (ids >= 0).float()
        words = self.normed(functional.embedding(ids.clamp_min(0), self.words)) * is_there[..., None]
        mean = words.sum(1) / is_there.sum(1, keepdim=True)
        if self.training:
            mean = functional.dropout(mean, DROPOUT)
        return self.normed(mean) @ self.topics.T

    def normed(self, x: Tensor) -> Tensor:
        """RMSNorm without a weight."""
        return functional.rms_norm(x, x.shape[-1:], eps=self.eps)


def bags(tokenizer: Tokenizer, questions: Sequence[str]) -> Tensor:
    """The ids of questions in the template of chats, padded with -1."""
    rows = [encoding.ids for encoding in tokenizer.encode_batch([render([], each) for each in questions])]
    length = max(map(len, rows))
    return torch.tensor([row + [-1] * (length - len(row)) for row in rows])


def train_bag(bag: Bag, tokenizer: Tokenizer, pool: Pool, epochs: int, rng: random.Random) -> None:
    """Learn what the teacher makes of the questions of the pool."""
    count = len(pool.questions)
    optimizer = torch.optim.Adam(bag.parameters(), lr=RATE)
    steps = epochs * (count // ROWS)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - 0.95 * step / steps)
    for epoch in range(epochs):
        order = rng.sample(range(count), count)
        total = 0.0
        for start in range(0, count - ROWS + 1, ROWS):
            chosen = order[start : start + ROWS]
            logits = bag(bags(tokenizer, [pool.questions[index] for index in chosen])).log_softmax(-1)
            loss = -(logits.gather(-1, pool.topics[chosen]) * pool.shares[chosen]).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"bag {epoch}: loss {total / (count // ROWS):.3f}", flush=True)


@torch.no_grad()
def begin_as_bag(network: Network, bag: Bag, topic_ids: Tensor) -> None:
    """Make the network one that does what the bag does: its first layer adds the mean of all words before."""
    words = bag.normed(bag.words)
    network.token_embd.weight.copy_(0.1 * words)
    network.output.weight[topic_ids] = bag.topics
    first = network.blk[0].attn
    nn.init.eye_(first.attn_v.weight)
    nn.init.eye_(first.attn_output.weight)
