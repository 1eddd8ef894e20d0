"""The table of architectures that run natively: `chaski models` prints it, and docs/models.md shows it.

What code says comes from code. What only a run of tiny models says is in `measured.json`, written by
tools/measure_models.py. The rest, whose models have an architecture and what is not there, is written here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from chaski.errors import extra_command

__all__ = ["DESCRIPTIONS", "MEASURED", "OTHERS", "ModelRow", "model_rows"]

MEASURED = Path(__file__).with_name("measured.json")

OTHERS = (
    f"Other architectures are computed by llama.cpp, an extra: {extra_command('llama-cpp')} installs it, "
    "and chaski chooses it by itself."
)


class Description(Struct, frozen=True):
    """The names that people know an architecture by, and facts that no code says.

    tools, thinking: formats of `chaski.text.parsers` in which models of the family call tools and think.
    notes: what is not there, and what is special.
    """

    families: str
    tools: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    notes: str = ""


_PICTURES = "Pictures, not videos. A picture of more than 2,048 squares of patches is made smaller."

DESCRIPTIONS: Mapping[str, Description] = {
    "bert": Description(
        "BERT, RoBERTa, XLM-RoBERTa, all-MiniLM, BGE, E5, GTE, mxbai-embed, Snowflake Arctic Embed; "
        "cross-encoders: MS MARCO MiniLM, BGE Reranker"
    ),
    "eurobert": Description("EuroBERT, Jina Embeddings 5 nano"),
    "gemma": Description("Gemma 1, CodeGemma"),
    "gemma-embedding": Description(
        "EmbeddingGemma", notes="Layers behind the pooling, of sentence-transformers, are converted too."
    ),
    "gemma2": Description("Gemma 2"),
    "gemma3": Description("Gemma 3, FunctionGemma", ("gemma3", "functiongemma")),
    "gemma3n": Description(
        "Gemma 3n",
        notes="Text only: the encoders of pictures and sound are not there yet. "
        "transformers is its only oracle: llama.cpp knows no sizes but the published ones.",
    ),
    "gemma4": Description(
        "Gemma 4, dense, with experts, E2B and E4B",
        ("gemma4",),
        ("gemma4",),
        "The encoder of sound is not there yet. An assistant (`gemma4-assistant`) proposes tokens as draft.",
    ),
    "gpt-oss": Description(
        "gpt-oss",
        ("harmony",),
        ("harmony",),
        "The difference is that of weights in float32; the processor rounds what it multiplies with MXFP4.",
    ),
    "granite": Description(
        "Granite 3 and 4, dense, Granite Vision 3",
        ("granite", "hermes"),
        notes="Tool calls as Granite 3 writes them, and as Granite 4 does.",
    ),
    "granitemoe": Description("Granite 3 with experts", ("granite",)),
    "internlm2": Description(
        "InternLM 2 and 2.5, InternVL 2.5 of 2B, 8B and 26B",
        notes="Computed as Llama. Pictures with a projector of InternVL.",
    ),
    "jina-bert-v2": Description(
        "Jina Embeddings 2",
        notes="The release for code is converted with the halves of its gates exchanged: llama.cpp's files "
        "apply the activation to the wrong one, and are read as they are.",
    ),
    "jina-bert-v3": Description(
        "Jina Embeddings 3",
        notes="`chaski convert --task` merges the adapter of a task; files of llama.cpp keep them apart.",
    ),
    "lfm2": Description(
        "LFM 2 and 2.5, dense, LFM2-VL",
        ("lfm2",),
        ("lfm2-thinking",),
        "No tokens are proposed: its convolutions cannot drop tokens again.",
    ),
    "llama": Description(
        "Llama 1 to 3.3, Mistral 7B and Small, Mixtral, DeepSeek R1 Distill, LLaVA, SmolVLM, "
        "Idefics 3 and others",
        ("llama3", "mistral", "hermes"),
        ("deepseek3",),
        "Pictures with a projector of LLaVA 1.5 and 1.6, SmolVLM and Idefics 3.",
    ),
    "llama4": Description(
        "Llama 4 Scout and Maverick",
        ("llama3",),
        notes="llama.cpp puts the rows of a picture into another order than transformers, which is followed.",
    ),
    "mistral3": Description(
        "Mistral Small 3.1 and 3.2, Ministral 3, Magistral", ("mistral", "ministral"), ("ministral",)
    ),
    "mllama": Description(
        "Llama 3.2 Vision", ("llama3",), notes="transformers is its only oracle: llama.cpp does not have it."
    ),
    "modern-bert": Description(
        "ModernBERT, GTE ModernBERT, Nomic ModernBERT Embed, Granite Embedding R2",
        notes="Rerankers that read the first token rank; those that read the mean of all are refused.",
    ),
    "nomic-bert": Description("Nomic Embed Text"),
    "nomic-bert-moe": Description(
        "Nomic Embed Text 2",
        notes="A bias behind the experts, where a checkpoint has one, is a tensor that only chaski reads.",
    ),
    "phi3": Description(
        "Phi 3 to 4, Phi 4 mini and reasoning",
        ("bare-json",),
        ("bare-json",),
        "LongRoPE has the factors of the context that the model is loaded with.",
    ),
    "qwen2": Description(
        "Qwen 2 and 2.5, QwQ, DeepSeek R1 Distill Qwen, InternVL 2.5 and 3, MiniCPM-V 2.6",
        ("hermes",),
        ("hermes",),
        "Pictures with a projector of InternVL or MiniCPM-V.",
    ),
    "qwen2moe": Description("Qwen 1.5 MoE, Qwen 2 57B-A14B"),
    "qwen2vl": Description(
        "Qwen 2-VL and 2.5-VL",
        ("hermes",),
        notes="Pictures, not videos; Ollama's files say `qwen25vl`. A picture of more than 2,048 squares of "
        "patches is made smaller.",
    ),
    "qwen3": Description(
        "Qwen 3, Qwen3-Embedding, Qwen3-Reranker, InternVL 3.5, MiniCPM-V 4.5",
        ("qwen3",),
        ("qwen3", "qwen3-thinking"),
        "Pictures with a projector of InternVL or MiniCPM-V.",
    ),
    "qwen35": Description("Qwen 3.5, dense", ("qwen3.5",), ("qwen3.5",), _PICTURES),
    "qwen35moe": Description("Qwen 3.5 with experts", ("qwen3.5",), ("qwen3.5",), _PICTURES),
    "qwen3moe": Description(
        "Qwen 3 with experts, Qwen3-Coder", ("qwen3", "qwen3-coder"), ("qwen3", "qwen3-thinking")
    ),
    "qwen3next": Description("Qwen3-Next, Qwen3-Coder-Next", ("qwen3", "qwen3-coder"), ("qwen3-thinking",)),
    "qwen3vl": Description(
        "Qwen 3-VL",
        ("qwen3",),
        ("qwen3", "qwen3-thinking"),
        _PICTURES,
    ),
    "qwen3vlmoe": Description(
        "Qwen 3-VL with experts",
        ("qwen3",),
        ("qwen3", "qwen3-thinking"),
        "Pictures as in `qwen3vl`. Experts are converted from the order of published checkpoints, which "
        "transformers 5 does not save.",
    ),
    "t5encoder": Description("Sentence-T5, GTR-T5"),
}


class ModelRow(Struct, frozen=True):
    """An architecture and what models of it can do.

    embeddings: "yes", "by file" where those do whose file names a pooling, or "no".
    speculation: tokens may be proposed, by n-grams or a draft model.
    has_heads: files may have a block that proposes them as well.
    differences: the largest measured one by the oracle that it is from.
    converter: names of architectures in the `config.json` of checkpoints.
    """

    architecture: str
    families: str
    text: bool
    pictures: bool
    embeddings: str
    tools: tuple[str, ...]
    thinking: tuple[str, ...]
    speculation: bool
    has_heads: bool = False
    differences: Mapping[str, float] = field(default_factory=dict)
    converter: tuple[str, ...] = ()
    notes: str = ""

    @property
    def oracles(self) -> str:
        """The oracles with the differences from them."""
        return ", ".join(f"{name} {value:.0e}" for name, value in self.differences.items())

    @property
    def proposals(self) -> str:
        """Where tokens that are computed ahead come from."""
        if not self.speculation:
            return "no"
        return "n-grams, draft models" + ", heads of its own" * self.has_heads

    def fits(self, words: str) -> bool:
        """True if the words are a part of one of its names; blanks and hyphens do not count."""
        wanted = _plain(words)
        return any(wanted in _plain(name) for name in (self.architecture, *self.families.split(", ")))

    def facts(self) -> list[tuple[str, str]]:
        """The facts to print, each with its label."""
        rows = [
            ("families", self.families),
            ("makes", _makes(self)),
            ("tools", ", ".join(self.tools) or "no"),
            ("thinking", ", ".join(self.thinking) or "no"),
            ("speculation", self.proposals),
            ("differences", self.oracles),
            ("converter", ", ".join(self.converter)),
            ("notes", self.notes),
        ]
        return [(label, text) for label, text in rows if text]


def _makes(row: ModelRow) -> str:
    found = ["text"] if row.text else []
    found += ["text about pictures"] if row.pictures else []
    by_file = {"by file": ["embeddings, where the file names a pooling"], "yes": ["embeddings"], "no": []}
    return ", ".join(found + by_file[row.embeddings])


def _plain(words: str) -> str:
    return "".join(char for char in words.lower() if char not in " -_")


def model_rows() -> list[ModelRow]:
    """The rows of all native architectures, sorted by name."""
    from chaski.model.registry import ARCHITECTURES

    measured, converters = json.loads(MEASURED.read_text()), _converters()
    return [_row(name, measured[name], converters.get(name, ())) for name in sorted(ARCHITECTURES)]


def _row(name: str, measured: Mapping[str, Any], converter: tuple[str, ...]) -> ModelRow:
    from chaski.model.registry import may_propose

    known = DESCRIPTIONS[name]
    embeds = "no" if not measured["embeddings"] else "by file" if measured["text"] else "yes"
    differences = {oracle: measured[oracle] for oracle in ("transformers", "llama.cpp") if oracle in measured}
    return ModelRow(
        architecture=name,
        families=known.families,
        text=measured["text"],
        pictures=measured["pictures"],
        embeddings=embeds,
        tools=known.tools,
        thinking=known.thinking,
        speculation=measured["speculation"],
        has_heads=may_propose(name),
        differences=differences,
        converter=converter,
        notes=known.notes,
    )


def _converters() -> dict[str, tuple[str, ...]]:
    """Architectures of checkpoints by GGUF's name of what they are converted to."""
    from chaski.convert.families import ENCODERS, FAMILIES, TEXT_MODELS, TEXT_PARTS

    pairs = [*FAMILIES.items(), *TEXT_PARTS.items(), *product(ENCODERS, dict.fromkeys(TEXT_MODELS.values()))]
    found: dict[str, tuple[str, ...]] = {}
    for name, module in sorted(pairs):
        architecture = import_module(f"chaski.convert.families.{module}").FAMILY.architecture
        found[architecture] = (*found.get(architecture, ()), name)
    return found
