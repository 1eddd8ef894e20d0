"""The network of the guide in torch: the llama architecture, as its GGUF file has it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from tools.guide.guide_file import Shape

__all__ = ["Network"]


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        kv_size = shape.num_kv_heads * shape.head_size
        self.attn_q = nn.Linear(shape.hidden_size, shape.num_heads * shape.head_size, bias=False)
        self.attn_k = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.attn_v = nn.Linear(shape.hidden_size, kv_size, bias=False)
        self.attn_output = nn.Linear(shape.num_heads * shape.head_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor) -> Tensor:
        s = self.shape
        batch, length, _ = x.shape
        groups, group = s.num_kv_heads, s.num_heads // s.num_kv_heads
        q = rotate(self.attn_q(x).view(batch, length, groups * group, s.head_size), turns)
        k = rotate(self.attn_k(x).view(batch, length, groups, s.head_size), turns)
        v = self.attn_v(x).view(batch, length, groups, s.head_size)
        # The query heads of a group stand below each other, so that K and V need no copies.
        q = (
            q.view(batch, length, groups, group, s.head_size)
            .permute(0, 2, 3, 1, 4)
            .reshape(batch, groups, group * length, s.head_size)
        )
        scores = q @ k.permute(0, 2, 3, 1).to(q.dtype) * s.head_size**-0.5
        weights = (scores.view(batch, groups, group, length, length) + mask).softmax(-1).view_as(scores)
        attended = (weights.to(v.dtype) @ v.transpose(1, 2)).view(batch, groups, group, length, s.head_size)
        return self.attn_output(attended.permute(0, 3, 1, 2, 4).reshape(batch, length, -1))


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn each pair of neighbours by its angle; x is (batch, length, heads, head_size), turns complex."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attn_norm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.attn = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.ffn_gate = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.ffn_up = nn.Linear(shape.hidden_size, shape.ffn_size, bias=False)
        self.ffn_down = nn.Linear(shape.ffn_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attn(self.attn_norm(x), turns, mask)
        h = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Network(nn.Module):
    """Token ids (batch, length) to logits (batch, length, vocab).

    The output matrix is not the embedding: each step moves all rows of words away from where topics are asked
    for, and embeddings that share such a direction say little.
    """

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.output_norm = nn.RMSNorm(shape.hidden_size, shape.eps)
        self.output = nn.Linear(shape.hidden_size, shape.vocab_size, bias=False)
        self.dropout = nn.Dropout(dropout)
        pairs = torch.arange(0, shape.head_size, 2, dtype=torch.float64) / shape.head_size
        angles = torch.outer(torch.arange(shape.context_length), shape.rope_base**-pairs)
        turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
        self.register_buffer("turns", turns[:, None], persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        for layer in self.blk:
            for last in (layer.attn.attn_output, layer.ffn_down):
                nn.init.normal_(last.weight, std=0.02 / (2 * shape.num_layers) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.hidden(tokens))
        return logits

    def hidden(self, tokens: Tensor) -> Tensor:
        """What comes out of the last norm: (batch, length, hidden_size)."""
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf).triu(1)
        x = self.dropout(self.token_embd(tokens))
        for layer in self.blk:
            x = layer(x, self.turns[:length], mask)
        return self.output_norm(x)

    def named_weights(self) -> dict[str, Tensor]:
        """The weights by their names in a GGUF file."""
        return {name.replace(".attn.", "."): tensor.detach() for name, tensor in self.state_dict().items()}

    def load_named_weights(self, weights: Mapping[str, Tensor]) -> None:
        """The way back: strict, each weight must be there and no other."""
        own = {name.replace(".attn.", "."): name for name in self.state_dict()}
        self.load_state_dict({own[name]: tensor for name, tensor in weights.items()})
