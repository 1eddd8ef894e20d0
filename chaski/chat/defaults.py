"""Defaults that a stored model's layers set: options, system message, chat format and first turns."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from chaski.chat.options import GenerateOptions, parse_options
from chaski.chat.sources import StoredFormat
from chaski.errors import OptionError
from chaski.names import check_engine
from chaski.options import OPTIONS, Kind, is_integer, nearest, none_below_zero
from chaski.store.model import StoredModel
from chaski.store.parameters import DEPRECATED, Parameter

__all__ = ["Defaults", "no_renderer", "stored_adapters"]

_log = logging.getLogger(__name__)

# The adapters of a model are layers of it, not a parameter.
_OPTIONS = GenerateOptions.__annotations__.keys() - {"adapter"}
# A draft is loaded, or not, by the number of its tokens.
_LOADING = {name for name, option in OPTIONS.items() if option.is_loading} - {"engine"} | {
    "draft_num_predict"
}


class Defaults(Struct, frozen=True):
    """Defaults of a model. The options and the system message of a request take precedence over them.

    options   keyword options of `LLM.generate`
    loading   settings of the file's loading, such as num_ctx
    engine    name of the engine that computes the model; None for the one that supports it
    template  chat template in Go's language; None for the template of the file
    opening   turns that every conversation begins with
    renderer  name of the renderer that writes the conversations; empty where a template does
    parser    name of the parser of its answers
    name      name of the model in the store; empty for a file outside of it
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    loading: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    system: str | None = None
    opening: Sequence[Mapping[str, str]] = ()
    renderer: str = ""
    engine: str | None = None
    parser: str = ""
    name: str = ""

    @classmethod
    def of(cls, model: StoredModel) -> Defaults:
        """Read the defaults of a stored model. Raises OptionError or SamplingError."""
        name = model.name.short if model.name else model.path.name
        unknown = model.parameters.keys() - _OPTIONS - _LOADING - DEPRECATED - {"engine"}
        renderer = model.config.renderer
        if renderer:
            _warn_of_unknown(renderer, name)
        if unknown:
            _log.warning("%s sets %s, which this version does not know", name, ", ".join(sorted(unknown)))
        options = {key: _value(key, value) for key, value in model.parameters.items() if key in _OPTIONS}
        if model.adapters:
            options["adapter"] = list(stored_adapters(model))
        parse_options(options)
        loading = {
            key: _setting(key, value)
            for key, value in model.parameters.items()
            if key in _LOADING - {"use_mmap"}
        }
        return cls(
            options,
            loading,
            None if renderer else model.template,
            model.system,
            model.messages,
            renderer,
            _engine(model),
            model.config.parser,
            model.name.short if model.name else "",
        )

    def stored_format(self, name: str) -> StoredFormat:
        """Return the stored part of the chat format. `name` is the model's, for messages."""
        return StoredFormat(name, self.template, self.renderer, self.parser)

    def conversation(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The model's own messages, then these; its system message only if these do not begin with one."""
        has_system = bool(messages) and messages[0].get("role") == "system"
        system = [{"role": "system", "content": self.system}] if self.system and not has_system else []
        return [*system, *self.opening, *messages]


def stored_adapters(model: StoredModel) -> dict[str, str]:
    """The adapters of a stored model by the names under which they are loaded."""
    return {path.name: str(path) for path in model.adapters}


def no_renderer(name: str, renderer: str) -> str:
    """Return the message for a model whose renderer is not known and whose file brings no template."""
    return (
        f"{name or 'the model'} asks for the renderer {renderer!r}, which this version does not have, and "
        "its file brings no template; create it again from this one with a TEMPLATE"
    )


def _value(name: str, value: Parameter) -> Any:
    """Recipes of Ollama's users may set what its engine takes."""
    return nearest(name, none_below_zero(name, value))


def _engine(model: StoredModel) -> str | None:
    value = model.parameters.get("engine")
    return check_engine(None if value is None else str(value))


def _setting(name: str, value: Parameter) -> Parameter:
    if OPTIONS[name].kind is Kind.INTEGER and not is_integer(value):
        raise OptionError(f"the model sets {name} to {value!r}; it must be a whole number")
    if OPTIONS[name].kind in (Kind.FLAG, Kind.TEXT) and not OPTIONS[name].allows(value):
        raise OptionError(f"the model sets {name} to {value!r:.100}; it must be {OPTIONS[name].wanted}")
    return value


def _warn_of_unknown(renderer: str, name: str) -> None:
    # Only a model that names a renderer pays for the modules of templates when it is loaded.
    from chaski.text.template.renderers import RENDERERS

    if renderer not in RENDERERS:
        note = "%s asks for the renderer %s; the template of its file is used where it has one"
        _log.warning(note, name, renderer)
