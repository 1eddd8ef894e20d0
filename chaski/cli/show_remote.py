"""The report of `chaski show` for a model of a server, from the server's answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from chaski.cli.layout import prefix_rows, section, size
from chaski.cli.show_stored import chosen_name, first_lines
from chaski.cli.terminal import echo_text
from chaski.errors import UnsupportedError

if TYPE_CHECKING:
    from chaski.remote import Remote

__all__ = ["show_there"]

_SHOWN_CHARACTERS = 80


def show_there(server: Remote, model: str, lists: tuple[bool, bool], texts: Mapping[str, bool]) -> None:
    """Print the requested texts or tables. lists: whether to list metadata, and tensors."""
    shown = server.post("/api/show", {"model": model, "verbose": lists[0]})
    if (name := chosen_name(texts)) is not None:
        if not (text := shown.get(name)):
            raise UnsupportedError(f"{model} has no {'chat template' if name == 'template' else name}")
        echo_text(str(text).rstrip("\n"))
        return
    info = shown.get("model_info") or {}
    parts = [
        section("Model", _overview(shown, info)),
        section("Capabilities", ((word,) for word in shown.get("capabilities") or ())),
        *(section("Adapter", _adapter(each)) for each in shown.get("adapters") or ()),
        section("Parameters", (line.split(None, 1) for line in shown.get("parameters", "").splitlines())),
        section("System", first_lines(shown.get("system", ""))),
        section("License", first_lines(shown.get("license", ""))),
        section("Prefix cache", prefix_rows(shown.get("prefix_cache") or {})),
    ]
    if lists[0]:
        parts.append(section("Metadata", [(key, _brief(info[key])) for key in sorted(info)]))
    if any(lists):
        tensors = shown.get("tensors") or ()
        parts.append(section("Tensors", [(each["name"], each["type"], each["shape"]) for each in tensors]))
    click.echo("\n".join(filter(None, parts)))


def _overview(shown: Mapping[str, Any], info: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    architecture = info.get("general.architecture", "")
    details = shown.get("details") or {}
    yield "architecture", architecture or details.get("family", "")
    count = info.get("general.parameter_count")
    yield "parameters", size(count) if isinstance(count, int) else details.get("parameter_size", "")
    for label in ("context length", "embedding length"):
        if (value := info.get(f"{architecture}.{label.replace(' ', '_')}")) is not None:
            yield label, value
    yield "quantization", details.get("quantization_level", "")
    if engine := shown.get("engine"):
        reason = shown.get("engine_reason")
        yield "engine", f"{engine} ({reason})" if reason else engine


def _adapter(shown: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for key in ("name", "architecture", "rank", "alpha", "matrices"):
        if key in shown:
            yield key, shown[key]


def _brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
