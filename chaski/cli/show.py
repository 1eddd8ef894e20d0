"""`chaski show`: describes a model file. It reads only the header, so it works for any readable model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.adapter_options import adapter_section
from chaski.cli.charts import PlotCommand, check_plot, plot_option, show
from chaski.cli.completion import model_names
from chaski.cli.json_output import echo_json, json_option
from chaski.cli.layout import prefix_rows, section, size, size_in_bytes
from chaski.cli.nodes import nodes_options, with_nodes
from chaski.cli.show_stored import (
    chosen_text,
    first_lines,
    projector_section,
    stored_sections,
    text_options,
)
from chaski.cli.terminal import echo_text
from chaski.formats.file_types import file_type

if TYPE_CHECKING:
    from pathlib import Path

    from chaski.formats.gguf import GGUFFile, GGUFValue
    from chaski.ml.backend import ByDevice
    from chaski.store.model import StoredModel

__all__ = ["command"]

_SHOWN_ITEMS = 5
_SHOWN_CHARACTERS = 80


@click.command("show", cls=PlotCommand, short_help="Describe a model file.")
@click.argument("model", shell_complete=model_names)
@text_options
@click.option("--tensors", is_flag=True, help="List every tensor with its type and shape.")
@click.option("--memory", is_flag=True, help="Show the memory needed to run the model.")
@click.option(
    "--context",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --memory or --plot: tokens of a sequence.  [default: as when loaded]",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --memory or --plot: sequences at the same time.  [default: OLLAMA_NUM_PARALLEL, else 1]",
)
@click.option("--backend", metavar="NAME", help="With --memory or --plot: backend to use.")
@nodes_options
@plot_option("Draw memory by layer and by context, in the terminal or to a file.")
@click.option("--verbose", is_flag=True, help="List the metadata and the tensors.")
@json_option("Print the description as JSON, in the form of /api/show.")
@click.help_option("-h", "--help")
def command(
    model: str,
    tensors: bool,
    memory: bool,
    context: int | None,
    parallel: int | None,
    backend: str | None,
    nodes: str | None,
    split: str | None,
    plot: str | None,
    verbose: bool,
    as_json: bool,
    **texts: bool,
) -> None:
    """Show the architecture, sizes and types of MODEL, a name or a path to a GGUF file."""
    from chaski.cli.remote_store import chosen_server
    from chaski.cli.show_remote import show_there
    from chaski.errors import UnsupportedError
    from chaski.formats.gguf import open_gguf
    from chaski.names import is_path
    from chaski.runner.loading.model_info import ModelInfo
    from chaski.store.model import find_model

    is_measured = memory or plot is not None
    backend = with_nodes(backend, nodes, split)
    if not is_measured and (context or parallel or backend):
        raise click.UsageError("--context, --parallel, --backend and --nodes need --memory or --plot")
    check_plot(plot)
    if as_json and (is_measured or any(texts.values())):
        raise click.UsageError("--json prints the whole description; leave the other option out")
    server = None if is_path(model) else chosen_server()
    if server is not None and as_json:
        echo_json(server.post("/api/show", {"model": model, "verbose": verbose}))
        return
    if server is not None and not is_measured:
        show_there(server, model, (verbose, tensors), texts)
        return
    if server is not None:
        raise UnsupportedError(
            f"{server.url} does not report the memory of a model; unset OLLAMA_HOST, or see `chaski ps`"
        )
    found = find_model(model)
    if as_json:
        echo_json(_as_json(found, verbose))
        return
    file = open_gguf(found.path)
    if (text := chosen_text(found, file, texts)) is not None:
        echo_text(text)
        return
    if file.get("general.type", str, "model") == "adapter":
        click.echo("\n".join([adapter_section(found.path), *_lists(file, verbose, tensors)]))
        return
    if memory:
        click.echo(section("Memory", _memory(found, context, parallel, backend)))
    if plot is not None:
        from chaski.cli.memory_plot import memory_charts
        from chaski.runner.loading.files import OpenedModel

        show(list(memory_charts(OpenedModel.of(found), context, parallel, backend)), plot)
    if is_measured:
        return
    parts = [
        section("Model", [*_overview(file, found.draft), ("engine", _engine(file, found))]),
        section("Capabilities", ((word,) for word in ModelInfo(found).capabilities)),
        *map(projector_section, found.projectors),
        *map(adapter_section, found.adapters),
        *stored_sections(found),
        section("Prefix cache", prefix_rows(_prefixes(found))),
    ]
    if not found.licenses:
        parts.append(section("License", first_lines(file.get("general.license", str, ""))))
    click.echo("\n".join(filter(None, [*parts, *_lists(file, verbose, tensors)])))


def _as_json(found: StoredModel, verbose: bool) -> dict[str, Any]:
    """Return the description of a model or of an adapter's file in the form of `/api/show`."""
    from chaski.formats.gguf import open_gguf
    from chaski.runner.loading.descriptions import describe, describe_file
    from chaski.runner.loading.model_info import ModelInfo

    with open_gguf(found.path) as file:
        if file.get("general.type", str, "model") == "adapter":
            return describe_file(found, verbose)
    adapters = {path.name: path for path in found.adapters}
    return describe(found, ModelInfo(found), adapters, found.path.stat().st_mtime, verbose)


def _prefixes(found: StoredModel) -> Mapping[str, float]:
    """Return the model's prefix cache on disk, in the format of `/api/show`."""
    from chaski.runner.loading.prefix import prefixes_of

    return prefixes_of(found)


def _lists(file: GGUFFile, verbose: bool, tensors: bool) -> Iterator[str]:
    """Yield the requested tables of metadata and tensors."""
    if verbose:
        yield section("Metadata", [(key, _brief(file.metadata[key])) for key in sorted(file.metadata)])
    if tensors or verbose:
        yield section("Tensors", _tensors(file))


def _memory(
    found: StoredModel, context: int | None, parallel: int | None, backend: str | None
) -> Iterator[tuple[str, ...]]:
    """Yield the memory that loading the model would need, by part, without loading it."""
    from chaski.ml.backend import HOST
    from chaski.runner.loading.estimate import Estimate
    from chaski.runner.loading.files import OpenedModel

    estimate = Estimate.of(OpenedModel.of(found), context, parallel, backend)
    needs = estimate.needs
    devices = list(needs.total)
    prefixes = {HOST: estimate.prefix_cache}

    def sizes(part: ByDevice) -> Iterator[str]:
        return (size_in_bytes(part[device]) if device in part else "" for device in devices)

    asked = f"{estimate.size.sequences} of {estimate.size.capacity} tokens"
    yield "sequences", "", "", asked, *[""] * (len(devices) - 1)
    if context is None and estimate.context_reason:
        yield "context", "", "", estimate.context_reason, *[""] * (len(devices) - 1)
    yield "", "layers", "cells", *(devices if len(devices) > 1 else ["memory"])
    yield "weights", "", "", *sizes(needs.weights)
    if any(needs.shared.values()):
        yield "already in memory", "", "", *sizes(needs.shared)
    if any(needs.in_files.values()):
        yield "too large, read from the file", "", "", *sizes(needs.in_files)
    for kind in needs.caches:
        yield f"cache, {kind.kind}", str(kind.layers), str(kind.cells), *sizes(kind.num_bytes)
    yield "plans", "", "", *(["unknown"] * len(devices) if needs.plans is None else sizes(needs.plans))
    if needs.draft:
        yield "draft model", "", "", *sizes(needs.draft)
    if needs.adapters:
        yield "adapters", "", "", *sizes(needs.adapters)
        yield "plans for batches with adapters", "", "", *sizes(needs.adapted)
    yield "all", "", "", *sizes(needs.total)
    if prefixes[HOST]:
        yield "prefix cache, later, at most", "", "", *sizes(prefixes)
    yield "available", "", "", *sizes(needs.available)


def _overview(file: GGUFFile, draft: Path | None) -> Iterator[tuple[str, object]]:
    from chaski.chat.file_templates import named_templates
    from chaski.runner.loading.proposals import has_heads, proposals

    architecture = file.architecture
    if name := file.get("general.name", str, ""):
        yield "name", name
    yield "architecture", architecture
    yield "parameters", size(sum(prod(tensor.shape) for tensor in file.tensors.values()))
    for label in ("context length", "embedding length"):
        key = f"{architecture}.{label.replace(' ', '_')}"
        if key in file.metadata:
            yield label, file.get(key, int)
    yield "quantization", file_type(file)
    if len(templates := named_templates(file)) > 1:
        yield "chat templates", ", ".join(templates)
    if words := proposals(has_heads(file), draft):
        yield "speculation", words
    yield "tensors", f"{len(file.tensors)}: {_tensor_types(file)}"


def _engine(file: GGUFFile, found: StoredModel) -> str:
    """Return the engine that would run the model, and how to install it if it is missing."""
    from chaski.chat.defaults import Defaults
    from chaski.errors import ChaskiError
    from chaski.model.file_dialects import in_our_names
    from chaski.model.metadata import check_is_model
    from chaski.names import NATIVE
    from chaski.runner.loading.engine_choice import (
        EXTRA,
        choose_engine,
        reason_for_llama_cpp,
        usual_engine,
    )
    from chaski.runner.loading.files import image_projector

    try:
        requested = Defaults.of(found).engine
    except ChaskiError:  # show the settings even if they cannot be used
        requested = None
    try:
        file = in_our_names(file)
        check_is_model(file)
    except ChaskiError:
        return "none"
    projector = image_projector(found)
    engine = usual_engine(file, requested, projector)
    try:
        choose_engine(file, engine, projector)
    except ChaskiError:
        if engine == NATIVE:
            return f"{engine} (not supported)"
        return f"{engine} (not installed: {EXTRA}; {reason_for_llama_cpp(file, projector)})"
    return engine if engine == NATIVE else f"{engine} ({reason_for_llama_cpp(file, projector)})"


def _tensor_types(file: GGUFFile) -> str:
    counts = Counter(tensor.type.name for tensor in file.tensors.values())
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


def _brief(value: GGUFValue) -> str:
    """Format a metadata value on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int | str):
        text = str(value)
        return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    items = [str(value[index]) for index in range(min(len(value), _SHOWN_ITEMS))]
    more = f" ...+{len(value) - len(items)} more" if len(value) > len(items) else ""
    return f"[{' '.join(items)}{more}]"


def _tensors(file: GGUFFile) -> Iterator[tuple[str, str, str]]:
    for name, tensor in file.tensors.items():
        yield name, tensor.type.name, str(list(tensor.shape))
