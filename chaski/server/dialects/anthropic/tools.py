"""Tools of Anthropic's API as functions: tools of the client, and tools with a well-known schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chaski.server.dialects.common.tools import function_tool
from chaski.server.fields.ignored import Ignored
from chaski.server.fields.reader import Fields

__all__ = ["read_tool"]

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_POINT = {"type": "array", "items": _WHOLE, "description": "x and y in pixels"}


def _choice(*words: str) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(words)}


def _object(required: list[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


_FILES = {"path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT, "insert_line": _WHOLE}
_RANGE = {"view_range": {"type": "array", "items": _WHOLE, "description": "first and last line"}}
_EDITS = ("view", "create", "str_replace", "insert")
_CLICKS = ("left_click", "right_click", "middle_click", "double_click", "left_click_drag")
_ACTIONS = ("screenshot", "cursor_position", "key", "type", "mouse_move", *_CLICKS)
_LATER_ACTIONS = ("hold_key", "left_mouse_down", "left_mouse_up", "triple_click", "scroll", "wait")

# The prefix of a tool's type, after which a date follows. The first match counts.
_KNOWN: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "bash_",
        "Runs a command in a shell that stays open, or starts that anew.",
        _object([], command=_TEXT, restart={"type": "boolean"}),
    ),
    (
        "text_editor_2024",
        "Shows, makes and changes files.",
        _object(["command", "path"], command=_choice(*_EDITS, "undo_edit"), **_FILES, **_RANGE),
    ),
    (
        "text_editor_20250124",
        "Shows, makes and changes files.",
        _object(["command", "path"], command=_choice(*_EDITS, "undo_edit"), **_FILES, **_RANGE),
    ),
    (
        "text_editor_",
        "Shows, makes and changes files.",
        _object(["command", "path"], command=_choice(*_EDITS), **_FILES, insert_text=_TEXT, **_RANGE),
    ),
    (
        "memory_",
        "Keeps notes in files below /memories, which outlive the conversation.",
        _object(
            ["command"],
            command=_choice(*_EDITS, "delete", "rename"),
            **_FILES,
            insert_text=_TEXT,
            old_path=_TEXT,
            new_path=_TEXT,
            **_RANGE,
        ),
    ),
    (
        "computer_2",
        "Uses the screen, the mouse and the keyboard, and shows the screen.",
        _object(
            ["action"],
            action=_choice(*_ACTIONS, *_LATER_ACTIONS),
            coordinate=_POINT,
            start_coordinate=_POINT,
            text=_TEXT,
            duration={"type": "number"},
            scroll_direction=_choice("up", "down", "left", "right"),
            scroll_amount=_WHOLE,
        ),
    ),
)


def read_tool(fields: Fields, ignored: Ignored) -> dict[str, Any] | None:
    """Return a tool in Ollama's form; None for a tool of Anthropic's servers, recorded as ignored."""
    kind, name = fields.text("type", default="custom"), fields.text("name")
    if kind in ("custom", "function"):
        return function_tool(fields, is_custom_function=True)
    known = next((each for each in _KNOWN if kind.startswith(each[0])), None)
    if known is None:
        ignored.add("tool", kind)
        return None
    _, description, schema = known
    if fields.has("display_width_px"):
        size = f"{fields.integer('display_width_px', 0)} x {fields.integer('display_height_px', 0)}"
        description = f"{description} It has {size} pixels."
    return _function(name or kind.rpartition("_")[0], description, schema)


def _function(name: str, description: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    described = {"name": name, "description": description, "parameters": dict(schema)}
    return {"type": "function", "function": described}
