"""Train the guide and write chaski/models/guide.gguf: `python -m tools.guide.train`.

Needs torch, tokenizers and gguf. Every random choice comes from one seed; on another machine or torch version
the last bits, and so the figures, can differ a little. At the end it prints how often the quantized weights
answer with the intended text.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tools.guide.chats import Sample, Sampler
from tools.guide.guide_file import Shape, read_weights, write_guide
from tools.guide.numpy_check import GuideFile
from tools.guide.topics import END, Topic, Turn, load_topics, render
from tools.guide.vocabulary import token_strings, train_tokenizer

TOKENS_PER_BATCH = 3072
PEAK_RATE, WARM_UP, WEIGHT_DECAY, DROPOUT = 3e-3, 200, 0.1, 0.1


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
    """Token ids (batch, length) to logits (batch, length, vocab); the output matrix is the embedding."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.output_norm = nn.RMSNorm(shape.hidden_size, shape.eps)
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
        return functional.linear(self.hidden(tokens), self.token_embd.weight)

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


def start_from(network: Network, earlier: Path, tokenizer: Tokenizer) -> None:
    """Begin with the weights of an earlier guide; a token that it did not have is the mean of its parts."""
    file = GuideFile.read(earlier)
    former = file.tokenizer()
    weights = {name: torch.from_numpy(w) for name, w in file.weights.items()}
    rows, ids = weights["token_embd.weight"], former.get_vocab()
    parts = [
        [ids[token]] if token in ids else former.encode(tokenizer.decode([index])).ids
        for index, token in enumerate(token_strings(tokenizer))
    ]
    weights["token_embd.weight"] = torch.stack([rows[part].mean(0) for part in parts])
    network.load_named_weights(weights)


def batches(sampler: Sampler) -> Iterator[tuple[Tensor, Tensor]]:
    """Ids and which of them count, (rows, length): rows of like length, about TOKENS_PER_BATCH in a batch."""
    while True:
        pool = sorted((sampler.chat() for _ in range(1024)), key=lambda sample: len(sample.ids))
        ready = []
        while pool:
            rows = max(1, TOKENS_PER_BATCH // _padded(len(pool[-1].ids)))
            ready.append(_pad(pool[-rows:]))
            del pool[-rows:]
        sampler.rng.shuffle(ready)
        yield from ready


def _padded(length: int) -> int:
    """Few different lengths, because torch compiles and keeps kernels for each shape."""
    return -(-length // 8) * 8


def _pad(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    length = _padded(max(len(sample.ids) for sample in samples))
    ids = [sample.ids + [0] * (length - len(sample.ids)) for sample in samples]
    counts = [sample.counts + [False] * (length - len(sample.counts)) for sample in samples]
    return torch.tensor(ids), torch.tensor(counts)


def loss_of(network: Network, ids: Tensor, counts: Tensor) -> Tensor:
    """Mean cross entropy of the tokens that count."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = network.hidden(ids[:, :-1])[counts[:, 1:]]
        logits = functional.linear(hidden, network.token_embd.weight)
    return functional.cross_entropy(logits.float(), ids[:, 1:][counts[:, 1:]])


@torch.no_grad()
def score(network: Network, tokenizer: Tokenizer, questions: Sequence[Turn]) -> tuple[float, list[str]]:
    """The share of questions whose greedy answer is the intended text, and the questions that got another.

    Greedy decoding gives a text exactly when each of its tokens is the most likely one after those before it,
    so one pass over question and answer tells; nothing needs to be generated.
    """
    network.eval()
    order = sorted(questions, key=lambda turn: len(turn.question) + len(turn.answer))
    missed: list[str] = []
    for start in range(0, len(order), 64):
        group = order[start : start + 64]
        ids, counts = _pad([_finished(turn, tokenizer) for turn in group])
        wrong = (network(ids[:, :-1]).argmax(-1) != ids[:, 1:]) & counts[:, 1:]
        missed += [group[row].question for row in wrong.any(dim=1).nonzero().flatten().tolist()]
    network.train()
    return 1 - len(missed) / len(questions), missed


def _finished(turn: Turn, tokenizer: Tokenizer) -> Sample:
    asked = tokenizer.encode(render([], turn.question)).ids
    answer = tokenizer.encode(turn.answer + END).ids
    return Sample(asked + answer, [False] * len(asked) + [True] * len(answer))


def optimizer_for(
    network: Network, steps: int, rate: float
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """AdamW with a short warm-up and then a cosine; norms do not decay."""
    matrices = [p for p in network.parameters() if p.dim() == 2]
    norms = [p for p in network.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=True)
    warm_up = min(WARM_UP, steps // 10)
    ramp = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, warm_up)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps - warm_up, eta_min=rate / 50)
    return optimizer, torch.optim.lr_scheduler.SequentialLR(optimizer, [ramp, cosine], [warm_up])


def train(
    network: Network, sampler: Sampler, steps: int, rate: float, tuning: Sequence[Turn]
) -> dict[str, Tensor]:
    """The weights with the best score on the tuning questions, looked at every 100 steps."""
    optimizer, schedule = optimizer_for(network, steps, rate)
    best, best_score, start = network.state_dict(), -1.0, time.monotonic()
    for step, (ids, counts) in zip(range(1, steps + 1), batches(sampler), strict=False):
        loss = loss_of(network, ids, counts)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 and step != steps:
            continue
        share, _ = score(network, sampler.tokenizer, tuning)
        print(f"{step}: loss {loss:.3f}, tuning {share:.3f}, {time.monotonic() - start:.0f} s", flush=True)
        if share >= best_score:
            best, best_score = {k: v.clone() for k, v in network.state_dict().items()}, share
    return best


def report(path: Path, shape: Shape, tokenizer: Tokenizer, topics: Sequence[Topic]) -> None:
    """Figures of the file as it is shipped: its weights are read back and dequantized."""
    network = Network(shape)
    network.load_named_weights({name: torch.from_numpy(w) for name, w in read_weights(path).items()})
    for title, questions in (
        ("own wordings", [Turn(wording, t.answer) for t in topics for wording in t.wordings]),
        ("tuning wordings", [Turn(t.tuning, t.answer) for t in topics]),
        ("held-out wordings", [Turn(wording, t.answer) for t in topics for wording in t.held_out]),
    ):
        share, missed = score(network, tokenizer, questions)
        print(f"{title}: {share:.1%} of {len(questions)}")
        if title == "own wordings":
            print(*missed, sep="\n")


def describe(guide: Path) -> None:
    """Write what a store says of the model beside it: its description, and that it answers greedily."""
    with TemporaryDirectory() as folder:
        store, name = Store(Path(folder)), ModelName.parse("described")
        for _ in create(store, name, Recipe(sources=[guide], parameters={"temperature": 0})):
            pass
        manifest = store.entry(name).manifest
        guide.with_suffix(".json").write_bytes(store.blobs.read(manifest.config.digest))
        (options,) = manifest.of_kind("params")
        guide.with_suffix(".params").write_bytes(store.blobs.read(options.digest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=PEAK_RATE, help="highest learning rate")
    parser.add_argument("--start", type=Path, help="an earlier guide to begin with")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "chaski/models/guide.gguf")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    topics, shape = load_topics(), Shape()
    tokenizer = train_tokenizer(topics, rng)
    network = Network(shape, DROPOUT)
    if options.start is not None:
        start_from(network, options.start, tokenizer)
    print(f"{len(topics)} topics, {sum(p.numel() for p in network.parameters()):,} parameters")
    tuning = [Turn(t.tuning, t.answer) for t in topics]
    best = train(network, Sampler(topics, tokenizer, rng), options.steps, options.rate, tuning)
    network.load_state_dict(best)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_guide(options.out, shape, {k: v.numpy() for k, v in network.named_weights().items()}, tokenizer)
    describe(options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")
    report(options.out, shape, tokenizer, topics)


if __name__ == "__main__":
    main()
