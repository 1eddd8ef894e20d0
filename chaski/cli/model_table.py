"""The table of native architectures, for `chaski models` and docs/models.md.

Facts come from the code where possible. Measurements of tiny models are in `measured.json`, written by
tools/measure_models.py. This module adds model names and limitations.
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
    f"llama.cpp, an optional extra, runs other architectures: {extra_command('llama-cpp')} installs it, "
    "and chaski then selects it automatically."
)


class Description(Struct, frozen=True):
    """The common model names of an architecture, and facts that the code does not contain.

    tools, thinking: formats of `chaski.text.parsers` in which models of the family call tools and think.
    notes: limitations and special features.
    """

    families: str
    tools: tuple[str, ...] = ()
    thinking: tuple[str, ...] = ()
    notes: str = ""


_PICTURES = "Pictures, not videos. A picture of more than 2,048 squares of patches is scaled down."

DESCRIPTIONS: Mapping[str, Description] = {
    "bert": Description(
        "BERT, RoBERTa, XLM-RoBERTa, all-MiniLM, BGE, E5, GTE, mxbai-embed, Snowflake Arctic Embed; "
        "cross-encoders: MS MARCO MiniLM, BGE Reranker"
    ),
    "eurobert": Description("EuroBERT, Jina Embeddings 5 nano"),
    "gemma": Description("Gemma 1, CodeGemma"),
    "gemma-embedding": Description(
        "EmbeddingGemma", notes="Dense layers of sentence-transformers after the pooling are converted too."
    ),
    "gemma2": Description("Gemma 2"),
    "gemma3": Description("Gemma 3, FunctionGemma", ("gemma3", "functiongemma")),
    "gemma3n": Description(
        "Gemma 3n",
        notes="Text only: the picture and sound encoders are not supported yet. "
        "transformers is the only oracle: llama.cpp supports only the published sizes.",
    ),
    "gemma4": Description(
        "Gemma 4, dense, with experts, E2B and E4B",
        ("gemma4",),
        ("gemma4",),
        "The sound encoder is not supported yet. An assistant (`gemma4-assistant`) works as draft model.",
    ),
    "gpt-oss": Description(
        "gpt-oss",
        ("harmony",),
        ("harmony",),
        "The difference applies to float32 weights; with MXFP4 weights, the CPU rounds activations.",
    ),
    "granite": Description(
        "Granite 3 and 4, dense, Granite Vision 3",
        ("granite", "hermes"),
        notes="Tool calls in the formats of Granite 3 and Granite 4.",
    ),
    "granitemoe": Description("Granite 3 with experts", ("granite",)),
    "internlm2": Description(
        "InternLM 2 and 2.5, InternVL 2.5 of 2B, 8B and 26B",
        notes="Computed as Llama. Pictures with a projector of InternVL.",
    ),
    "jina-bert-v2": Description(
        "Jina Embeddings 2",
        notes="The code model is converted with the halves of its gates swapped: llama.cpp's files "
        "apply the activation to the wrong half, and chaski reads them unchanged.",
    ),
    "jina-bert-v3": Description(
        "Jina Embeddings 3",
        notes="`chaski convert --task` merges a task adapter; llama.cpp's files keep adapters separate.",
    ),
    "lfm2": Description(
        "LFM 2 and 2.5, dense, LFM2-VL",
        ("lfm2",),
        ("lfm2-thinking",),
        "No speculative decoding: its convolutions cannot drop tokens again.",
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
        notes="Picture rows have the order of transformers; llama.cpp orders them differently.",
    ),
    "mistral3": Description(
        "Mistral Small 3.1 and 3.2, Ministral 3, Magistral", ("mistral", "ministral"), ("ministral",)
    ),
    "mllama": Description(
        "Llama 3.2 Vision", ("llama3",), notes="transformers is the only oracle: llama.cpp lacks it."
    ),
    "modern-bert": Description(
        "ModernBERT, GTE ModernBERT, Nomic ModernBERT Embed, Granite Embedding R2",
        notes="Rerankers that read the first token work; rerankers that read the mean are rejected.",
    ),
    "nomic-bert": Description("Nomic Embed Text"),
    "nomic-bert-moe": Description(
        "Nomic Embed Text 2",
        notes="An optional bias after the experts is stored in a tensor that only chaski reads.",
    ),
    "phi3": Description(
        "Phi 3 to 4, Phi 4 mini and reasoning",
        ("bare-json",),
        ("bare-json",),
        "LongRoPE uses the factors for the context with which the model is loaded.",
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
        "patches is scaled down.",
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
        "Pictures as in `qwen3vl`. Experts are converted from the layout of published checkpoints, which "
        "transformers 5 does not save.",
    ),
    "t5encoder": Description("Sentence-T5, GTR-T5"),
}


class ModelRow(Struct, frozen=True):
    """An architecture and the capabilities of its models.

    embeddings: "yes", "no", or "by file" if only files that name a pooling support them.
    speculation: whether n-grams or a draft model can propose tokens.
    has_heads: whether files may contain a block that proposes tokens.
    differences: the largest measured logit difference from each oracle.
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
        """The oracles with the difference from each."""
        return ", ".join(f"{name} {value:.0e}" for name, value in self.differences.items())

    @property
    def proposals(self) -> str:
        """The sources of proposed tokens."""
        if not self.speculation:
            return "no"
        return "n-grams, draft models" + ", built-in heads" * self.has_heads

    def fits(self, words: str) -> bool:
        """Return whether `words` is part of one of its names, ignoring blanks and hyphens."""
        wanted = _plain(words)
        return any(wanted in _plain(name) for name in (self.architecture, *self.families.split(", ")))

    def facts(self) -> list[tuple[str, str]]:
        """Return the facts to print as pairs of label and value."""
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
    by_file = {"by file": ["embeddings, if the file names a pooling"], "yes": ["embeddings"], "no": []}
    return ", ".join(found + by_file[row.embeddings])


def _plain(words: str) -> str:
    return "".join(char for char in words.lower() if char not in " -_")


def model_rows() -> list[ModelRow]:
    """Return the rows of all native architectures, sorted by name."""
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
    """Return the checkpoint architectures for each GGUF architecture."""
    from chaski.convert.families import ENCODERS, FAMILIES, TEXT_MODELS, TEXT_PARTS

    pairs = [*FAMILIES.items(), *TEXT_PARTS.items(), *product(ENCODERS, dict.fromkeys(TEXT_MODELS.values()))]
    found: dict[str, tuple[str, ...]] = {}
    for name, module in sorted(pairs):
        architecture = import_module(f"chaski.convert.families.{module}").FAMILY.architecture
        found[architecture] = (*found.get(architecture, ()), name)
    return found
