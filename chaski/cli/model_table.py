"""The table of native architectures, for `chaski models` and docs/models.md.

Facts come from the code where possible; each architecture states its model names and limitations.
Measurements of tiny models are in `measured.json`, written by tools/measure_models.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from chaski.errors import extra_command

__all__ = ["MEASURED", "OTHERS", "ModelRow", "model_rows"]

MEASURED = Path(__file__).with_name("measured.json")

OTHERS = (
    f"llama.cpp, an optional extra, runs other architectures: {extra_command('llama-cpp')} installs it, "
    "and chaski then selects it automatically."
)


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
    from chaski.model.registry import ARCHITECTURES, may_propose

    known = ARCHITECTURES[name]
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
    from chaski.convert.families import ENCODERS, TEXT_MODELS, TEXT_PARTS, families, family_in

    pairs = [(name, module.FAMILY) for name, module in families().items()]
    pairs += [(name, family_in(file)) for name, file in TEXT_PARTS.items()]
    pairs += [
        (name, family_in(file)) for name, file in product(ENCODERS, dict.fromkeys(TEXT_MODELS.values()))
    ]
    found: dict[str, tuple[str, ...]] = {}
    for name, family in sorted(pairs, key=itemgetter(0)):
        found[family.architecture] = (*found.get(family.architecture, ()), name)
    return found
