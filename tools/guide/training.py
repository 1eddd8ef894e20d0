"""Training of the guide's encoder and calibration of its probabilities."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.guide.encoder import Encoder, padded
from tools.guide.pieces import Pieces

__all__ = ["fit_temperature", "log_probabilities", "prototypes", "train"]

TOKENS_PER_BATCH = 1536


def batches(rows: Sequence[Sequence[int]], rng: random.Random) -> Iterator[list[int]]:
    """Return batches of indices with similar lengths and about TOKENS_PER_BATCH tokens, in random order."""
    order = sorted(range(len(rows)), key=lambda index: (len(rows[index]), rng.random()))
    ready: list[list[int]] = []
    while order:
        count = max(1, TOKENS_PER_BATCH // len(rows[order[-1]]))
        ready.append(order[-count:])
        del order[-count:]
    rng.shuffle(ready)
    yield from ready


@torch.no_grad()
def prototypes(encoder: Encoder, pieces: Pieces, texts: Sequence[str], topics: Sequence[int]) -> None:
    """Set the row of each topic to the mean direction of its texts."""
    sums, rows = torch.zeros_like(encoder.topics.weight), pieces.ids(texts)
    for batch in batches(rows, random.Random(0)):
        vectors = encoder.embed(*padded([rows[index] for index in batch]))
        sums.index_add_(0, torch.tensor([topics[index] for index in batch]), vectors)
    encoder.topics.weight.copy_(20 * functional.normalize(sums, dim=-1))
    nn.init.zeros_(encoder.topics.bias)


@torch.no_grad()
def log_probabilities(encoder: Encoder, pieces: Pieces, texts: Sequence[str]) -> Tensor:
    """Return log-probabilities (texts, topics) in the order of the texts."""
    found, rows = torch.zeros(len(texts), encoder.topics.out_features), pieces.ids(texts)
    for batch in batches(rows, random.Random(0)):
        found[batch] = encoder(*padded([rows[index] for index in batch])).log_softmax(-1)
    return found


def train(
    encoder: Encoder,
    pieces: Pieces,
    texts: Sequence[str],
    topics: Sequence[int],
    reword: Callable[[str], str],
    *,
    epochs: int,
    exact: int,
    rng: random.Random,
    rate: float,
) -> None:
    """Train the encoder on texts with topics; each epoch re-words half of the texts.

    Matrices are rounded in epochs after the first `exact` ones.
    """
    head = list(encoder.topics.parameters())
    body = [p for name, p in encoder.named_parameters() if not name.startswith("topics.")]
    optimizer = torch.optim.AdamW(
        [{"params": body, "lr": rate}, {"params": head, "lr": 20 * rate}], weight_decay=0.01, fused=True
    )
    num_steps = epochs * len(list(batches(pieces.ids(texts), rng)))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, step / (0.06 * num_steps + 1)) * max(0.0, 1 - step / (1.05 * num_steps)),
    )
    start = time.monotonic()
    for epoch in range(epochs):
        encoder.round_matrices(epoch >= exact)
        rows = pieces.ids([reword(text) if rng.random() < 0.5 else text for text in texts])
        losses = []
        for batch in batches(rows, rng):
            logits = encoder(*padded([rows[index] for index in batch]))
            target = torch.tensor([topics[index] for index in batch])
            loss = functional.cross_entropy(logits, target, label_smoothing=0.02)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        told = f"loss {sum(losses) / len(losses):.3f}, {time.monotonic() - start:.0f} s"
        print(f"epoch {epoch}: {told}", flush=True)


def fit_temperature(logs: Tensor, target: Tensor) -> float:
    """Return the temperature that calibrates these probabilities (texts, topics)."""
    grid = [0.4 + 0.05 * step for step in range(40)]
    return min(grid, key=lambda t: float(functional.cross_entropy(logs / t, target)))
