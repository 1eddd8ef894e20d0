"""The types of Ollama's data: their names, their field names in JSON, and how they print.

The list of tools, the arguments of a call and the properties of a tool print as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from chaski.text.template.go.encoding import to_json
from chaski.text.template.go.show import show
from chaski.text.template.go.values import Map, Slice, Struct, Value


@dataclass(frozen=True, slots=True)
class ToolList(Slice):
    """The list of tools."""

    type_name: ClassVar[str] = "template.templateTools"

    def text(self) -> str:
        """Return the value as JSON."""
        return to_json(self)


@dataclass(frozen=True, slots=True)
class ArgumentMap(Map):
    """The arguments of a call."""

    type_name: ClassVar[str] = "template.templateArgs"

    def text(self) -> str:
        """Return the value as JSON; a nil map is an empty one."""
        return "{}" if self.is_nil else to_json(self)


@dataclass(frozen=True, slots=True)
class Properties(ArgumentMap):
    """The parameters of a tool, by name."""

    type_name: ClassVar[str] = "template.templateProperties"


@dataclass(frozen=True, slots=True)
class InnerProperties(Map):
    """The properties of a property, in the order of the request and shown as JSON."""

    type_name: ClassVar[str] = "*api.ToolPropertiesMap"

    def text(self) -> str:
        """Return the value as JSON."""
        return to_json(self)


@dataclass(frozen=True, slots=True)
class PropertyType(Slice):
    """One or more type names; a single one is shown without brackets."""

    type_name: ClassVar[str] = "api.PropertyType"

    def text(self) -> str:
        """Return the name, or the list."""
        return show(self.items[0]) if len(self.items) == 1 else show(Slice(self.items)) if self.items else ""

    def for_json(self) -> Value:
        """Return the name, or the list."""
        return self.items[0] if len(self.items) == 1 else self


@dataclass(frozen=True, slots=True)
class ToolCallStruct(Struct):
    """A call that the assistant made."""

    type_name: ClassVar[str] = "template.templateToolCall"


@dataclass(frozen=True, slots=True)
class ToolCallFunction(Struct):
    """The name and the arguments of a call."""

    type_name: ClassVar[str] = "template.templateToolCallFunction"


@dataclass(frozen=True, slots=True)
class MessageFields(Struct):
    """A message as templates see it."""

    type_name: ClassVar[str] = "*template.templateMessage"


@dataclass(frozen=True, slots=True)
class ToolStruct(Struct):
    """A tool of the request."""

    type_name: ClassVar[str] = "template.templateTool"
    json_names: ClassVar[Mapping[str, str]] = {"Type": "type", "Items": "items", "Function": "function"}
    json_optional: ClassVar[frozenset[str]] = frozenset({"Items"})


@dataclass(frozen=True, slots=True)
class ToolFunction(Struct):
    """Name, description and parameters of a tool."""

    type_name: ClassVar[str] = "template.templateToolFunction"
    json_names: ClassVar[Mapping[str, str]] = {
        "Name": "name",
        "Description": "description",
        "Parameters": "parameters",
    }


@dataclass(frozen=True, slots=True)
class Parameters(Struct):
    """The schema of a tool's arguments, limited to the fields that Ollama keeps."""

    type_name: ClassVar[str] = "template.templateToolFunctionParameters"
    json_names: ClassVar[Mapping[str, str]] = {
        "Type": "type",
        "Defs": "$defs",
        "Items": "items",
        "Required": "required",
        "Properties": "properties",
    }
    json_optional: ClassVar[frozenset[str]] = frozenset({"Defs", "Items", "Required"})


@dataclass(frozen=True, slots=True)
class Property(Struct):
    """The schema of one argument, limited to the fields that Ollama keeps."""

    type_name: ClassVar[str] = "api.ToolProperty"
    json_names: ClassVar[Mapping[str, str]] = {
        "AnyOf": "anyOf",
        "Type": "type",
        "Items": "items",
        "Description": "description",
        "Enum": "enum",
        "Properties": "properties",
        "Required": "required",
    }
    json_optional: ClassVar[frozenset[str]] = frozenset(json_names)
