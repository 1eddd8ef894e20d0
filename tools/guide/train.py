"""Train the next guide and write its file: `python -m tools.guide.train --encoder FOLDER`.

FOLDER has the files of all-MiniLM-L6-v2, which the teacher begins with (tools/guide/README.md). Needs torch,
safetensors, tokenizers and gguf. Every random choice comes from one seed; on another machine or torch version
the last bits, and so the figures, can differ a little. At the end it prints how often the quantized weights
choose the intended topic.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from chaski.names import ModelName
from chaski.store.create import create
from chaski.store.recipe import Recipe
from chaski.store.store import Store
from tools.guide.bag import Bag, begin_as_bag, train_bag
from tools.guide.chats import Chats, Sample
from tools.guide.guide_file import Shape, read_weights, write_guide
from tools.guide.network import Network
from tools.guide.pool import Pool, fit_temperature, make_pool, neighbours_of
from tools.guide.questions import Questions, sentences_of
from tools.guide.rewording import reword
from tools.guide.teacher import Teacher, Words, prototypes, train_teacher
from tools.guide.topics import Topic, load_topics, render
from tools.guide.vocabulary import Vocabulary, train_tokenizer

WARM_UP, WEIGHT_DECAY, DROPOUT = 200, 0.1, 0.1
FEW = 256  # tokens of texts in a batch; fewer count less than the mean would make of them
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the training: its steps, highest learning rate, and what a step has.

    told: how often answers follow their first tokens. tokens: about as many in questions and such answers.
    answers: so many more, without questions.
    """

    steps: int
    rate: float
    told: float
    tokens: int
    answers: int


PHASES = (
    Phase(steps=1700, rate=1e-3, told=0.1, tokens=2048, answers=32),  # choices, and answers by themselves
    Phase(steps=900, rate=6e-4, told=1.0, tokens=4096, answers=4),  # answers behind questions
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of like length: ids (rows, length), which of them count, and what is asked of the others.

    A row of `rows` and `positions` is a place whose next token is one of `choices` (places, LISTED), with the
    probabilities `shares` of the same shape.
    """

    ids: Tensor
    counts: Tensor
    rows: Tensor
    positions: Tensor
    choices: Tensor
    shares: Tensor


def batches(chats: Chats, pool: Pool, phase: Phase) -> Iterator[Batch]:
    """Endless batches of about `phase.tokens` tokens."""
    rng = chats.rng
    while True:
        order = rng.sample(range(len(pool.questions)), len(pool.questions))
        for start in range(0, len(order), 2048):
            samples = [chats.of(index, phase.told) for index in order[start : start + 2048]]
            ready = []
            samples.sort(key=lambda sample: len(sample.ids))
            while samples:
                rows = max(1, phase.tokens // _padded(len(samples[-1].ids)))
                ready.append(_joined(samples[-rows:]))
                del samples[-rows:]
            rng.shuffle(ready)
            yield from ready


def _padded(length: int) -> int:
    """Few different lengths, because torch compiles and keeps kernels for each shape."""
    return -(-length // 8) * 8


def _joined(samples: Sequence[Sample]) -> Batch:
    length = _padded(max(len(sample.ids) for sample in samples))
    places = [(row, place) for row, sample in enumerate(samples) for place in sample.places]
    return Batch(
        torch.tensor([sample.ids + [0] * (length - len(sample.ids)) for sample in samples]),
        torch.tensor([sample.counts + [False] * (length - len(sample.counts)) for sample in samples]),
        torch.tensor([row for row, _ in places], dtype=torch.long),
        torch.tensor([place.position for _, place in places], dtype=torch.long),
        _stacked([place.choices for _, place in places], torch.long),
        _stacked([place.shares for _, place in places], torch.float),
    )


def _stacked(rows: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Rows below each other, padded with zeros; none are (0, 1)."""
    return pad_sequence(list(rows), batch_first=True) if rows else torch.zeros(0, 1, dtype=dtype)


def losses_of(network: Network, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean cross entropy of the choices, and of all other tokens that count."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = network.hidden(batch.ids[:, :-1])
        choices = network.output(hidden[batch.rows, batch.positions])
        texts = network.output(hidden[batch.counts[:, 1:]])
    chosen = choices.float().log_softmax(-1).gather(-1, batch.choices)
    of_choices = -(chosen * batch.shares).sum() / max(len(chosen), 1)
    told = batch.ids[:, 1:][batch.counts[:, 1:]]
    of_texts = functional.cross_entropy(texts.float(), told, reduction="sum") / max(len(told), FEW)
    return of_choices, of_texts


@torch.no_grad()
def first_tokens(network: Network, tokenizer: Tokenizer, questions: Sequence[str]) -> Tensor:
    """The probabilities of the tokens with which the answers begin: (questions, vocab)."""
    network.eval()
    result = torch.zeros(len(questions), network.token_embd.num_embeddings)
    rows = [tokenizer.encode(render([], question)).ids for question in questions]
    for length in {len(row) for row in rows}:
        of_length = [index for index, row in enumerate(rows) if len(row) == length]
        hidden = network.hidden(torch.tensor([rows[index] for index in of_length]))[:, -1]
        result[of_length] = network.output(hidden).softmax(-1)
    network.train()
    return result


def answer_batches(chats: Chats, count: int) -> Iterator[Batch]:
    """Endless batches of `count` answers without questions; all come before one comes again."""
    samples, deck = chats.texts(), list[Sample]()
    while True:
        if len(deck) < count:
            deck = chats.rng.sample(samples, len(samples))
        yield _joined([deck.pop() for _ in range(count)])


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of questions whose answer begins as their topic's, with two answers, or with not being sure."""

    right: float
    two: float
    unsure: float

    def __str__(self) -> str:
        wrong = 1 - self.right - self.two - self.unsure
        shares = (f"{self.right:.1%} right", f"{self.two:.1%} two answers", f"{self.unsure:.1%} not sure")
        return ", ".join((*shares, f"{wrong:.1%} wrong"))


def score(network: Network, vocabulary: Vocabulary, asked: Sequence[tuple[int, str]]) -> Score:
    """Ask questions, each with the index of its topic."""
    best = first_tokens(network, vocabulary.tokenizer, [question for _, question in asked]).argmax(-1)
    own = torch.tensor([vocabulary.topics[topic] for topic, _ in asked])
    two, unsure = best == vocabulary.either, torch.isin(best, torch.tensor(vocabulary.pages))
    return Score(*(which.float().mean().item() for which in (best == own, two, unsure)))


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
    network: Network, chats: Chats, pool: Pool, phase: Phase, tuning: Sequence[tuple[int, str]]
) -> None:
    """Train for a phase, with a look at the tuning wordings every 200 steps."""
    optimizer, schedule = optimizer_for(network, phase.steps, phase.rate)
    start = time.monotonic()
    told = zip(batches(chats, pool, phase), answer_batches(chats, phase.answers), strict=True)
    for step, (batch, answers) in zip(range(1, phase.steps + 1), told, strict=False):
        of_choices, of_texts = losses_of(network, batch)
        _, of_answers = losses_of(network, answers)
        loss = of_choices + of_texts / 3 + of_answers
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0 or step == phase.steps:
            found = score(network, chats.vocabulary, tuning)
            losses = f"losses {of_choices:.3f}, {of_texts:.3f} and {of_answers:.3f}"
            print(f"{step}: {losses}, tuning {found}, {time.monotonic() - start:.0f} s", flush=True)


def report(path: Path, shape: Shape, vocabulary: Vocabulary, topics: Sequence[Topic]) -> None:
    """Figures of the file as it is shipped: its weights are read back and dequantized."""
    network = Network(shape)
    network.load_named_weights({name: torch.from_numpy(w) for name, w in read_weights(path).items()})
    for title, asked in (
        ("own wordings", [(i, wording) for i, t in enumerate(topics) for wording in t.wordings]),
        ("tuning wordings", [(i, t.tuning) for i, t in enumerate(topics)]),
        ("held-out wordings", [(i, wording) for i, t in enumerate(topics) for wording in t.held_out]),
    ):
        print(f"{title}: {score(network, vocabulary, asked)} of {len(asked)}", flush=True)


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


def taught(options: argparse.Namespace, topics: Sequence[Topic], words: Words, rng: random.Random) -> Teacher:
    """A teacher that knows the topics. That of an earlier run goes on where their text has changed."""
    texts = [(wording, index) for index, topic in enumerate(topics) for wording in topic.wordings]
    texts += [(topic.answer, index) for index, topic in enumerate(topics)]
    names, file = [topic.name for topic in topics], options.work / "teacher.pt"
    teacher = Teacher.of_encoder(options.encoder, len(topics))
    epochs, rate = options.epochs, 1.2e-4
    earlier = torch.load(file) if file.exists() else None
    if earlier is not None and earlier["texts"] == texts:
        teacher.take_over(earlier["weights"], earlier["names"], names)
        return teacher
    if earlier is not None:
        epochs, rate = 1, 4e-5
        teacher.take_over(earlier["weights"], earlier["names"], names)
    known, of_topics = [text for text, _ in texts], [index for _, index in texts]
    prototypes(teacher, words, known, of_topics)
    if earlier is not None:
        teacher.take_over(earlier["weights"], earlier["names"], names)
    train_teacher(
        teacher, words, known, of_topics, lambda text: reword(text, rng), epochs=epochs, rng=rng, rate=rate
    )
    torch.save({"texts": texts, "names": names, "weights": teacher.state_dict()}, file)
    (options.work / "pool.pt").unlink(missing_ok=True)
    return teacher


def pool_of(
    options: argparse.Namespace, topics: Sequence[Topic], teacher: Teacher, words: Words, rng: random.Random
) -> Pool:
    """The pool of an earlier run with the same teacher, or a new one."""
    file = options.work / "pool.pt"
    if file.exists():
        return Pool.load(file)
    neighbours = neighbours_of(
        topics, Teacher.of_encoder(options.encoder, len(topics)), words, options.encoder
    )
    sentences = sentences_of(sorted((ROOT / "docs").glob("*.md")))
    questions = Questions(topics, neighbours, sentences, rng)
    tuning = [reword(questions.with_neighbours(topic.tuning), rng) for topic in topics for _ in range(3)]
    target = torch.arange(len(topics)).repeat_interleave(3)
    temperature = fit_temperature(teacher, words, tuning, target)
    print(f"{len(neighbours)} words have neighbours, temperature {temperature:.2f}", flush=True)
    pool = make_pool(questions, teacher, words, options.pool, temperature)
    pool.save(file)
    return pool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--encoder", type=Path, required=True, help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--topics", type=Path, default=Path(__file__).parent / "drafts", help="the text")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build/guide", help="keeps the teacher and its pool"
    )
    parser.add_argument("--epochs", type=int, default=6, help="of the teacher")
    parser.add_argument("--pool", type=int, default=190_000, help="questions that the teacher looks at")
    parser.add_argument("--bag-epochs", type=int, default=3, help="of the bag of words")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "build/guide/guide.gguf")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    topics = load_topics(options.topics)
    words = Words(options.encoder)
    teacher = taught(options, topics, words, rng)
    pool = pool_of(options, topics, teacher, words, rng)
    tokenizer = train_tokenizer(topics, pool.questions[::4], rng)
    tuning = [(index, topic.tuning) for index, topic in enumerate(topics)]
    vocabulary = Vocabulary(tokenizer, topics)
    shape = Shape(len(vocabulary.tokens))
    network = Network(shape, DROPOUT)
    print(f"{len(topics)} topics, {sum(p.numel() for p in network.parameters()):,} parameters", flush=True)
    chats = Chats(topics, vocabulary, pool, rng)
    bag = Bag(shape.vocab_size, shape.hidden_size, len(topics), shape.eps)
    train_bag(bag, tokenizer, pool, options.bag_epochs, rng)
    begin_as_bag(network, bag, torch.tensor(vocabulary.topics))
    print(f"as a bag of words: tuning {score(network, vocabulary, tuning)}", flush=True)
    for phase in PHASES:
        train(network, chats, pool, phase, tuning)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_guide(options.out, shape, {k: v.numpy() for k, v in network.named_weights().items()}, vocabulary)
    describe(options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")
    report(options.out, shape, vocabulary, topics)


if __name__ == "__main__":
    main()
