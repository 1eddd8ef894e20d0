"""The teacher of the guide: a sentence encoder that learns which topic a question belongs to.

It knows English before it sees a topic (all-MiniLM-L6-v2, Apache-2.0), so it understands words that no
wording has. The guide learns from its probabilities over re-worded, mixed and foreign questions; none of its
weights are in the guide. Needs torch, safetensors, tokenizers and the encoder's files.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Teacher", "Words", "probabilities", "prototypes", "train_teacher"]

HIDDEN_SIZE, NUM_HEADS, NUM_LAYERS, NUM_POSITIONS, EPS = 384, 12, 6, 128, 1e-12
TOKENS_PER_BATCH = 2048


class Words:
    """Texts as padded ids and a mask of what is no padding, both (texts, length)."""

    def __init__(self, encoder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(NUM_POSITIONS)

    def __call__(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        rows = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        length = -(-max(map(len, rows)) // 4) * 4  # few shapes, because torch keeps kernels for each
        ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
        return ids, torch.tensor([[1.0] * len(row) + [0.0] * (length - len(row)) for row in rows])


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.attended = (
            nn.Linear(HIDDEN_SIZE, HIDDEN_SIZE) for _ in range(4)
        )
        self.up, self.down = nn.Linear(HIDDEN_SIZE, 4 * HIDDEN_SIZE), nn.Linear(4 * HIDDEN_SIZE, HIDDEN_SIZE)
        self.attended_norm, self.norm = (nn.LayerNorm(HIDDEN_SIZE, EPS) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        x = self.attended_norm(x + self.dropout(self.attended(attended)))
        return self.norm(x + self.dropout(self.down(functional.gelu(self.up(x)))))


_NAMES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attended",
    "attention.output.LayerNorm": "attended_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "norm",
}


class Teacher(nn.Module):
    """Ids and mask (texts, length) to logits (texts, topics)."""

    def __init__(self, num_topics: int) -> None:
        super().__init__()
        self.words = nn.Embedding(30522, HIDDEN_SIZE)
        self.positions = nn.Parameter(torch.zeros(NUM_POSITIONS, HIDDEN_SIZE))
        self.norm = nn.LayerNorm(HIDDEN_SIZE, EPS)
        self.layers = nn.ModuleList(EncoderLayer() for _ in range(NUM_LAYERS))
        self.dropout = nn.Dropout(0.1)
        self.topics = nn.Linear(HIDDEN_SIZE, num_topics)

    @classmethod
    def of_encoder(cls, encoder: Path, num_topics: int) -> Teacher:
        """A teacher with the weights of all-MiniLM-L6-v2, and no topics yet."""
        weights = load_file(encoder / "model.safetensors")
        teacher = cls(num_topics)
        given = {
            "words.weight": weights["embeddings.word_embeddings.weight"],
            "positions": weights["embeddings.position_embeddings.weight"][:NUM_POSITIONS]
            + weights["embeddings.token_type_embeddings.weight"][0],
            "norm.weight": weights["embeddings.LayerNorm.weight"],
            "norm.bias": weights["embeddings.LayerNorm.bias"],
        }
        for index in range(NUM_LAYERS):
            for theirs, ours in _NAMES.items():
                for kind in ("weight", "bias"):
                    given[f"layers.{index}.{ours}.{kind}"] = weights[f"encoder.layer.{index}.{theirs}.{kind}"]
        missing, unknown = teacher.load_state_dict(given, strict=False)
        assert not unknown
        assert set(missing) == {"topics.weight", "topics.bias"}
        return teacher

    @torch.no_grad()
    def take_over(self, state: Mapping[str, Tensor], theirs: Sequence[str], ours: Sequence[str]) -> None:
        """Take the weights of an earlier teacher, and its rows of topics that are still there, by name."""
        weights = dict(state)
        rows, biases = weights.pop("topics.weight"), weights.pop("topics.bias")
        self.load_state_dict(weights, strict=False)
        place_of = {name: index for index, name in enumerate(theirs)}
        for row, name in enumerate(ours):
            if name in place_of:
                self.topics.weight[row], self.topics.bias[row] = rows[place_of[name]], biases[place_of[name]]

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Unit vectors (texts, hidden size): the mean over what is no padding."""
        x = self.dropout(self.norm(self.words(ids) + self.positions[: ids.shape[1]]))
        hidden = (1 - mask)[:, None, None] * -1e9
        for layer in self.layers:
            x = layer(x, hidden.to(x.dtype))
        return functional.normalize((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.topics(self.embed(ids, mask))
        return logits


def by_length(count_of: Sequence[int], rng: random.Random) -> Iterator[list[int]]:
    """Indices in batches of like length and about TOKENS_PER_BATCH, in random order."""
    order = sorted(range(len(count_of)), key=lambda index: (count_of[index], rng.random()))
    batches: list[list[int]] = []
    while order:
        rows = max(1, TOKENS_PER_BATCH // (count_of[order[-1]] + 2))
        batches.append(order[-rows:])
        del order[-rows:]
    rng.shuffle(batches)
    yield from batches


@torch.no_grad()
def prototypes(teacher: Teacher, words: Words, texts: Sequence[str], topics: Sequence[int]) -> None:
    """Make the mean direction of each topic's texts its row."""
    teacher.eval()
    sums = torch.zeros_like(teacher.topics.weight)
    for batch in by_length([len(text.split()) for text in texts], random.Random(0)):
        vectors = teacher.embed(*words([texts[index] for index in batch]))
        sums.index_add_(0, torch.tensor([topics[index] for index in batch]), vectors)
    teacher.topics.weight.copy_(20 * functional.normalize(sums, dim=-1))
    nn.init.zeros_(teacher.topics.bias)
    teacher.train()


@torch.no_grad()
def probabilities(teacher: Teacher, words: Words, texts: Sequence[str], temperature: float = 1.0) -> Tensor:
    """(texts, topics), in the order of the texts."""
    teacher.eval()
    result = torch.zeros(len(texts), teacher.topics.out_features)
    for batch in by_length([len(text.split()) for text in texts], random.Random(0)):
        with torch.autocast("cpu", torch.bfloat16):
            logits = teacher(*words([texts[index] for index in batch]))
        result[batch] = (logits.float() / temperature).softmax(-1)
    teacher.train()
    return result


def train_teacher(
    teacher: Teacher,
    words: Words,
    texts: Sequence[str],
    topics: Sequence[int],
    reword: Callable[[str], str],
    *,
    epochs: int,
    rng: random.Random,
    rate: float = 1e-4,
) -> None:
    """Learn which topic each text belongs to; half of the texts are re-worded in each epoch."""
    head = list(teacher.topics.parameters())
    body = [p for name, p in teacher.named_parameters() if not name.startswith("topics.")]
    optimizer = torch.optim.AdamW(
        [{"params": body, "lr": rate}, {"params": head, "lr": 20 * rate}], weight_decay=0.01, fused=True
    )
    num_steps = epochs * len(list(by_length([len(text.split()) for text in texts], rng)))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, step / (0.06 * num_steps + 1)) * max(0.0, 1 - step / (1.05 * num_steps)),
    )
    start = time.monotonic()
    for epoch in range(epochs):
        asked = [reword(text) if rng.random() < 0.5 else text for text in texts]
        losses = []
        for batch in by_length([len(text.split()) for text in asked], rng):
            with torch.autocast("cpu", torch.bfloat16):
                logits = teacher(*words([asked[index] for index in batch]))
            target = torch.tensor([topics[index] for index in batch])
            loss = functional.cross_entropy(logits.float(), target, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(teacher.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        told = f"loss {sum(losses) / len(losses):.3f}, {time.monotonic() - start:.0f} s"
        print(f"teacher {epoch}: {told}", flush=True)
