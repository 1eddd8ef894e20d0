"""Train the encoder of the guide's answers and write it into the guide's file.

    python -m tools.guide.train --encoder FOLDER
    python -m tools.guide.train --epochs 3 # continues with the encoder of the guide's file

FOLDER contains the files of all-MiniLM-L6-v2, the starting point (tools/guide/README.md). Needs torch,
safetensors and tokenizers. One seed determines all random choices; on another machine or torch version, the
last bits and so the figures can differ a little.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from tools.guide.answers_file import Choice, describe, put_answers
from tools.guide.encoder import Encoder
from tools.guide.encoder_file import encoder_metadata, encoder_tensors, read_encoder
from tools.guide.pieces import Pieces, trained_pieces
from tools.guide.rewording import LEXICON, reword
from tools.guide.topics import Topic, load_topics
from tools.guide.training import fit_temperature, log_probabilities, prototypes, train

MERGED, LEAST, PIECES = 1400, 3, 4680
SURE, CAREFUL, LIKELY = 0.5, 0.75, 0.25
ROOT = Path(__file__).parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--encoder", type=Path, help="folder of all-MiniLM-L6-v2; else training continues")
    parser.add_argument("--layers", type=int, default=4, help="number of first encoder layers")
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--rounded", type=int, default=1, help="number of last epochs with rounding")
    parser.add_argument("--rate", type=float, default=1.5e-4, help="highest learning rate")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--guide", type=Path, default=ROOT / "chaski/models/guide.gguf", help="is read")
    parser.add_argument("--out", type=Path, default=ROOT / "build/guide/guide.gguf")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    rng = random.Random(options.seed)
    topics = load_topics()
    asked = [(index, text) for index, topic in enumerate(topics) for text in (*topic.wordings, topic.answer)]
    texts, of_topics = [text for _, text in asked], [index for index, _ in asked]
    if options.encoder is None:
        encoder, pieces = read_encoder(options.guide, len(topics))
    else:
        pieces = trained_pieces(options.encoder, [*texts, LEXICON], MERGED, LEAST, PIECES)
        encoder = Encoder.begun(options.encoder, pieces, options.layers, len(topics))
    print(f"{len(topics)} topics, {len(texts)} texts, {len(pieces.tokens)} pieces", flush=True)
    prototypes(encoder, pieces, texts, of_topics)
    train(
        encoder,
        pieces,
        texts,
        of_topics,
        lambda text: reword(text, rng),
        epochs=options.epochs,
        exact=options.epochs - options.rounded,
        rate=options.rate,
        rng=rng,
    )
    temperature = fitted(encoder, pieces, topics, rng)
    print(f"temperature {temperature:.2f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    state = {name: weight.numpy() for name, weight in encoder.state_dict().items()}
    rows, biases = (state.pop(f"topics.{name}") / temperature for name in ("weight", "bias"))
    choice = Choice(
        topics=topics,
        rows=rows,
        biases=biases,
        sure=SURE,
        careful=CAREFUL,
        likely=LIKELY,
    )
    metadata, tensors = encoder_metadata(state, pieces), encoder_tensors(state)
    put_answers(options.guide, options.out, metadata, tensors, choice)
    describe(options.out)
    print(f"{options.out}: {options.out.stat().st_size:,} bytes")


def fitted(encoder: Encoder, pieces: Pieces, topics: Sequence[Topic], rng: random.Random) -> float:
    """Return the temperature that calibrates tuning wordings, including re-worded ones."""
    asked = [
        (index, text)
        for index, topic in enumerate(topics)
        for text in (topic.tuning, reword(topic.tuning, rng), reword(topic.tuning, rng))
    ]
    logs = log_probabilities(encoder, pieces, [text for _, text in asked])
    target: Tensor = torch.tensor([index for index, _ in asked])
    return fit_temperature(logs, target)


if __name__ == "__main__":
    main()
