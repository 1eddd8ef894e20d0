"""Write the files that are generated from code: pages of the docs, and options of the web page."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import click

from chaski.chat.options import AnswerOptions
from chaski.cli.main import chaski_command
from chaski.cli.model_table import OTHERS, ModelRow, model_rows
from chaski.env import variables
from chaski.errors import extra_command
from chaski.options import OPTIONS, Kind, Option
from chaski.runner.choosing.losses import published
from chaski.sample import SamplingOptions

ROOT = Path(__file__).parent.parent
PLANS = ROOT / "tests/data/described_machines.json"
"""The plans that `tools/described_machines.py` writes."""


_WHICH_STORE = """\
## Which store

`list`, `show`, `create`, `cp`, `rm`, `pull` and `push` work on [the store of this machine](store.md), without
a server. Where `OLLAMA_HOST` is set, they ask the server that it names, over its API and with the key in
`OLLAMA_API_KEY`; they fail if it does not answer. `ps`, `top` and `stop` always ask a server: the one that
`OLLAMA_HOST` names, or else the one at the usual address. `run` asks a server that has the model. Where there
is none, it loads the model itself.

* `create` sends the GGUF files that a Modelfile names to the server. A checkpoint must be converted first, by
  `chaski convert`.
* `show` reads a file (`./model.gguf`) on this machine in any case. `ps` tells how much memory a loaded model
  takes.
* `verify` and `prune` are for the store of this machine, and say so.

Models, files, servers and registries may send control characters. On a terminal they are spelled out; files
and pipes get them unchanged."""


def cli_page() -> str:
    """Return the page of all commands with their help texts."""
    context = click.Context(chaski_command, info_name="chaski")
    parts = ["# Commands", "This page is made by `make docs`.", _WHICH_STORE, _help(chaski_command, context)]
    for name in chaski_command.list_commands(context):
        command = chaski_command.get_command(context, name)
        assert command is not None
        sub = click.Context(command, info_name=name, parent=context, max_content_width=100)
        parts += [f"## chaski {name}", _help(command, sub)]
        if isinstance(command, click.Group):
            parts += [
                _help(each, click.Context(each, info_name=word, parent=sub, max_content_width=100))
                for word, each in command.commands.items()
            ]
    return "\n\n".join(parts) + "\n"


def environment_page() -> str:
    """Return the table of environment variables."""
    rows = [
        f"| `{variable.name}` | {variable.kind} | {variable.default} | {variable.meaning} |"
        for variable in variables()
    ]
    head = ["| name | kind | default | meaning |", "|---|---|---|---|"]
    intro = (
        "This page is made by `make docs`. Arguments and options go before variables, and variables before\n"
        "defaults. A value that a variable cannot have is an error that names the variable."
    )
    return "\n".join(["# Environment variables", "", intro, "", *head, *rows]) + "\n"


_MODELS = """\
# Models

This page is made by `make docs`; `chaski models` prints it, `chaski models FAMILY` all facts about some, and
`--json` all of it for programs. An architecture is the name that a GGUF file gives in `general.architecture`.

* *Embeddings* "by file": a model gives embeddings, or ranks, where its file names a pooling.
* *Tools* and *thinking* are those of published models, with the format of their answers. What one file can do
  its template says: `chaski show` tells.
* *Speculation*: tokens are proposed by n-grams or by a draft, and never change the answer. A draft is a small
  model of the same vocabulary, or a file that reads hidden states of the model that it was trained for
  (EAGLE-3, DFlash, DFlash 2, DSpark); `gemma3n` and `mllama` hand out none. Where it says "heads", models
  whose file has blocks for multi-token prediction propose by these as well: the first token by the first
  block, and all tokens after the last block's first one by the last block."""

_HOW_NEAR = """\
## How near

Tiny random models of each architecture, with every feature on, are computed in float32 by the processor. The
logits (embeddings, for models that make no text) are compared with those of transformers, and what is written
here is the largest difference. llama.cpp, which keeps keys and values in half precision, is the second
oracle: the logarithms of the probabilities of the 20 likeliest tokens are compared, and embeddings. A dash
means that it cannot load the tiny model, so transformers is the only oracle. What it computes otherwise than
transformers is left out there: windows in Phi 3, chunks and temperatures of Llama 4, YaRN in gpt-oss.

Where its figure is large, the cause is known for these:

* `gemma2`: a file of a model without a bound of its logits has 0 there. llama.cpp takes 0, and a missing key,
  for a bound; with a bound in the file the figure is 3e-02. Published models have one.
* `llama4`: llama.cpp normalizes keys unless a model has 128 experts, and reads no key for it. With the norm
  the figure is 8e-03. Published models without it have 128 experts.
* `qwen35moe`: one tiny model uses a single expert for each token, and rounded keys and values change which
  one. With keys and values in float32, llama.cpp's logits differ by 8e-04 at most.

`tools/measure_models.py` measures, and a test holds the values to it.

The converter reads checkpoints of Hugging Face with these architectures in `config.json`
([Converting](convert.md))."""


_LOSSES = """\
## What the types lose

Two real models were written in the types of each mixture, and compared with their weights in F32 on
`tests/data/evaluation.txt`. The published files that the weights come from are quantized already. The
figures contain what the engine loses by rounding activations to eight bits, about 0.003 to 0.005 nats here.
Rows of 576 or 640 weights have no K types. A mixture then uses the types with blocks of 32 that llama.cpp
uses, as the bits per weight show. SmolLM2's published weights have the type Q4_1, so Q4_1 loses nothing but
what the rounding of activations costs. Q5_0 and Q5_1 have other grids and lose more.
IQ1, IQ2, IQ3_XXS and Q2_K_S got an importance matrix of the text of [Architecture](architecture.md).
Such small models lose more than large ones. [Choosing a file](choosing.md) explains the columns, and
`tools/measure_types.py` measures them."""


def losses_section() -> str:
    """Return the table of what the types lose."""
    head = ("model", "type", "bits per weight", "KL divergence", "99 %", "same top token", "perplexity")
    rows: list[tuple[str, ...]] = [
        (
            model,
            name,
            f"{row['bits_per_weight']:.2f}",
            f"{row['divergence']:.3g}",
            f"{row['divergence_99']:.3g}",
            f"{row['agreement']:.1%}",
            f"× {row['perplexity_ratio']:.4f}",
        )
        for model, types in published()["measured"].items()
        for name, row in types.items()
    ]
    return f"{_LOSSES}\n\n{_markdown(head, rows)}"


def models_page() -> str:
    """Return the table of native architectures."""
    rows = model_rows()
    able = _markdown(
        ("architecture", "models", "text", "pictures", "embeddings", "tools", "thinking", "speculation"),
        [_abilities(row) for row in rows],
    )
    near = _markdown(
        ("architecture", "transformers", "llama.cpp", "converter"), [_nearness(row) for row in rows]
    )
    notes = [f"* `{row.architecture}`: {row.notes}" for row in rows if row.notes]
    notes = [textwrap.fill(note, 110, subsequent_indent="  ", break_on_hyphens=False) for note in notes]
    install = extra_command("llama-cpp")
    others = OTHERS.replace(install, f"`{install}`") + " [Two engines](engines.md) says more."
    parts = [
        _MODELS,
        able,
        "## Notes",
        "\n".join(notes),
        "## Other architectures",
        textwrap.fill(others, 110),
    ]
    return "\n\n".join([*parts, _HOW_NEAR, near, losses_section()]) + "\n"


def _abilities(row: ModelRow) -> tuple[str, ...]:
    def mark(value: object) -> str:
        return "yes" if value else "–"

    return (
        f"`{row.architecture}`",
        row.families,
        mark(row.text),
        mark(row.pictures),
        row.embeddings.replace("no", "–"),
        ", ".join(row.tools) or "–",
        ", ".join(row.thinking) or "–",
        "heads" if row.has_heads else mark(row.speculation),
    )


def _nearness(row: ModelRow) -> tuple[str, ...]:
    values = (row.differences.get(oracle) for oracle in ("transformers", "llama.cpp"))
    near = [f"{value:.0e}" if value else "–" for value in values]
    return f"`{row.architecture}`", *near, ", ".join(f"`{name}`" for name in row.converter)


def _markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


_PLANS = """\
# Plans for twelve machines

This page is made by `make docs`. It shows what `chaski fit` plans for one model, Qwen 3.5 35B-A3B in Q4_K_M
(%s), on machines from a laptop without a card to a server. [The guide](larger-than-memory.md) explains
how to run such a model. The planner is the one that loads models. The cards are emulated, with 0.5 GiB of
each taken, and other programs take 2 GiB of memory. The planner chooses the context by itself.

:::{note}
The rates are *simulated*. Products on a processor reach 70 %% of the memory's nominal bandwidth: DDR4-3200
and DDR5-5600 in two channels, 120 GB/s where memory is unified, and eight channels of DDR5 for the H100. A
core multiplies 100 billion times per second, and a disk gives 3 GB/s. Experts count as equally likely; text
that prefers some finds more of them in memory and is faster. chaski has no backend for the GPUs of unified
memory yet, so the processor computes there.
:::"""

_HOW_PLANNED = """\
## How the planner decides

1. A card gets all of the model if the card has room for it. Several cards share a model if one of them has
   room for a context of less than 32,768 tokens only.
2. Otherwise a card gets all layers, but the experts of as few layers as necessary stay on the processor. A
   token uses few of them, so they need the least bandwidth for their size.
3. If the card is too small even for layers without experts, it gets the last layers.
4. Experts on the processor that memory has no room for stay in the file. The ones that tokens choose most are
   in memory, and the others are read when tokens choose them.
5. Where memory has no room for all weights, a longer context would take memory from them. It has at most
   32,768 tokens, which is enough for agents, and what it takes beyond the shortest context, of 4,096 tokens,
   is at most an eighth of a device's memory. `--context` chooses another.

`python -m tools.described_machines` plans again."""


def plans_page() -> str:
    """Return the table of plans for described machines."""
    plans: dict[str, dict[str, Any]] = json.loads(PLANS.read_text())
    head = ("machine", "where", "context", "prompt, tok/s", "answer, tok/s")
    rows: list[tuple[str, ...]] = [
        (
            machine,
            _where(plan),
            f"{plan['context']:,}",
            f"{plan['prefill']:,.0f}",
            f"{plan['decode']:.3g}",
        )
        for machine, plan in plans.items()
    ]
    weights = f"{next(iter(plans.values()))['weights'] / 1e9:.1f} GB"
    return "\n\n".join([_PLANS % weights, _markdown(head, rows), _HOW_PLANNED]) + "\n"


def _where(plan: dict[str, Any]) -> str:
    parts = [f"`{device}`: {contents}" for device, contents in plan["devices"].items() if contents]
    if plan["in_files"]:
        parts.append(f"disk: {plan['in_files'] / 1e9:.1f} GB of the experts")
    return "; ".join(parts)


_OPTIONS = """\
# Options

This page is made by `make docs` from the table of options in `chaski/options.py`. [Sampling](sampling.md)
explains in which order they act.

Every option is a keyword argument of `generate`, `stream` and `chat` in Python, except for those of loading.
The other places are:

* **Modelfile**: a `PARAMETER` of a Modelfile, and `/set parameter` in a chat.
* **options**: an entry of `options` in a request.
* **field**: a field of `/v1/chat/completions`, `/v1/completions` and `/v1/responses`.
* **messages**: a field of `/v1/messages`.
* **llama.cpp**: a field of its routes `/completion` and `/infill`, with its name there.

Where None is a value in Python, requests and Modelfiles take every number below 0 for it. A beam search
refuses the options that are marked with *no beams*, unless their value asks for nothing."""


def options_page() -> str:
    """Return the table of options."""
    head = ("option", "values", "without it", "meaning", "where")
    rows: dict[bool, list[tuple[str, ...]]] = {True: [], False: []}
    for name, option in OPTIONS.items():
        rows[option.is_loading].append(_option_row(name, option))
    return (
        "\n\n".join(
            [_OPTIONS, _markdown(head, rows[False]), "## Options of loading", _markdown(head, rows[True])]
        )
        + "\n"
    )


def _option_row(name: str, option: Option) -> tuple[str, ...]:
    where = list(map(str, option.places))
    if option.llama_cpp:
        where.append("llama.cpp" if option.llama_cpp == name else f"llama.cpp (`{option.llama_cpp}`)")
    where += ["no beams"] if option.neutral is not None else []
    values = {"format": '`"json"` or a schema', "early_stopping": '`True`, `False`, `"never"`'}
    values |= {
        "logit_bias": "an object",
        "engine": "a name",
        "adapter": "names",
        "format_thought": "an object",
    }
    default = "–" if option.is_loading else _default(name)
    return f"`{name}`", values.get(name, option.wanted), default, option.meaning, ", ".join(where)


def _value(name: str) -> Any:
    options = AnswerOptions() if name in AnswerOptions.__struct_fields__ else SamplingOptions()
    return getattr(options, name)


def _default(name: str) -> str:
    value = _value(name)
    if value is None:
        return OPTIONS[name].none
    if isinstance(value, tuple | dict):
        return ", ".join(f"`{item!r}`" for item in value) or "none"
    return f"`{value}`" if value != "" else "none"


def web_options() -> str:
    """Return the facts about each numeric option as JSON, for the settings of the web page.

    These are its range, its meaning, whether it is an integer, and its default: `default` if that is a
    number, otherwise `unset`, which says what happens without the option. Options of loading have neither.
    """
    found: dict[str, dict[str, float | str | bool]] = {}
    for name, option in OPTIONS.items():
        if option.kind not in (Kind.INTEGER, Kind.NUMBER):
            continue
        default = None if option.is_loading else _value(name)
        facts = {
            "min": option.least,
            "is_above": option.is_above or None,
            "max": option.most,
            "default": default,
            "unset": option.none if default is None and not option.is_loading else None,
            "is_integer": option.kind is Kind.INTEGER,
            "meaning": option.meaning,
        }
        found[name] = {key: value for key, value in facts.items() if value is not None}
    kept = next(variable for variable in variables() if variable.name == "OLLAMA_KEEP_ALIVE")
    return json.dumps(found | {kept.name: {"unset": kept.default, "meaning": kept.meaning}}, indent=2) + "\n"


GENERATED = {
    "docs/models.md": models_page,
    "docs/cli.md": cli_page,
    "docs/environment.md": environment_page,
    "docs/options.md": options_page,
    "docs/plans.md": plans_page,
    "web/src/chat/options.json": web_options,
}


def _help(command: click.Command, context: click.Context) -> str:
    return f"```\n{command.get_help(context)}\n```"


def main() -> None:
    """Write all files."""
    for name, text in GENERATED.items():
        (ROOT / name).write_text(text())


if __name__ == "__main__":
    main()
