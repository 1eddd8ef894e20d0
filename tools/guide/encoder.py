"""The guide's encoder: a sentence encoder that learns the topic of a question.

It starts from the first layers of all-MiniLM-L6-v2 (Apache-2.0), which already knows English. Needs torch,
safetensors and the encoder's files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from tools.guide.pieces import LONGEST, Pieces

__all__ = ["Encoder", "padded"]

HIDDEN_SIZE, NUM_HEADS, EPS = 384, 12, 1e-12


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return ids, and a mask without padding, both (texts, length)."""
    length = -(-max(map(len, rows)) // 4) * 4  # few shapes, because torch keeps kernels for each
    ids = torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])
    return ids, torch.tensor([[1.0] * len(row) + [0.0] * (length - len(row)) for row in rows])


def rounded(weight: Tensor) -> Tensor:
    """Round a matrix to Q4_0; gradients ignore the rounding."""
    blocks = weight.detach().unflatten(-1, (-1, 32))
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = (largest / -8).half().float()
    codes = (blocks / torch.where(scale == 0, 1.0, scale)).add(8.5).floor().clamp(0, 15)
    return weight + ((codes - 8) * scale).flatten(-2) - weight.detach()


class Linear(nn.Linear):
    """A product with an optionally rounded matrix."""

    rounds = False

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, rounded(self.weight) if self.rounds else self.weight, self.bias)


class Words(nn.Embedding):
    """An optionally rounded row for each piece."""

    rounds = False

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, rounded(self.weight) if self.rounds else self.weight)


class EncoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn_q, self.attn_k, self.attn_v, self.attn_output = (
            Linear(HIDDEN_SIZE, HIDDEN_SIZE) for _ in range(4)
        )
        self.ffn_up, self.ffn_down = (
            Linear(HIDDEN_SIZE, 4 * HIDDEN_SIZE),
            Linear(4 * HIDDEN_SIZE, HIDDEN_SIZE),
        )
        self.attn_output_norm, self.layer_output_norm = (nn.LayerNorm(HIDDEN_SIZE, EPS) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            part(x).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        attended = functional.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        x = self.attn_output_norm(x + self.attn_output(attended))
        return self.layer_output_norm(x + self.ffn_down(functional.gelu(self.ffn_up(x))))


_NAMES = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


class Encoder(nn.Module):
    """Maps ids and mask (texts, length) to logits (texts, topics). Parameters have GGUF names."""

    def __init__(self, num_pieces: int, num_layers: int, num_topics: int) -> None:
        super().__init__()
        self.token_embd = Words(num_pieces, HIDDEN_SIZE)
        self.position_embd = nn.Embedding(LONGEST, HIDDEN_SIZE)
        self.token_embd_norm = nn.LayerNorm(HIDDEN_SIZE, EPS)
        self.blk = nn.ModuleList(EncoderLayer() for _ in range(num_layers))
        self.topics = nn.Linear(HIDDEN_SIZE, num_topics)

    @classmethod
    def begun(cls, encoder: Path, pieces: Pieces, num_layers: int, num_topics: int) -> Encoder:
        """Return the first layers of all-MiniLM-L6-v2 with some of its pieces, without topics."""
        weights = load_file(encoder / "model.safetensors")
        found = cls(len(pieces.tokens), num_layers, num_topics)
        given = {
            "token_embd.weight": pieces.rows_of(encoder, weights["embeddings.word_embeddings.weight"]),
            "position_embd.weight": weights["embeddings.position_embeddings.weight"][:LONGEST]
            + weights["embeddings.token_type_embeddings.weight"][0],
            "token_embd_norm.weight": weights["embeddings.LayerNorm.weight"],
            "token_embd_norm.bias": weights["embeddings.LayerNorm.bias"],
        }
        for index in range(num_layers):
            for theirs, ours in _NAMES.items():
                for kind in ("weight", "bias"):
                    given[f"blk.{index}.{ours}.{kind}"] = weights[f"encoder.layer.{index}.{theirs}.{kind}"]
        missing, unknown = found.load_state_dict(given, strict=False)
        assert not unknown
        assert set(missing) == {"topics.weight", "topics.bias"}
        return found

    def round_matrices(self, rounds: bool = True) -> None:
        """Compute from now on with matrices rounded as in the file, or unrounded."""
        for module in self.modules():
            if isinstance(module, Linear | Words):
                module.rounds = rounds

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return unit vectors (texts, hidden size): the mean over tokens that are not padding."""
        positions = torch.arange(ids.shape[1])
        x = self.token_embd_norm(self.token_embd(ids) + self.position_embd(positions))
        hidden = (1 - mask)[:, None, None] * -1e9
        for layer in self.blk:
            x = layer(x, hidden)
        return functional.normalize((x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = self.topics(self.embed(ids, mask))
        return logits
