"""The schema editor: fields and text stay equal, and `/api/chat` receives the schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fake_worker import Script
from tests.server.running import Running, wait_until
from tests.web.conftest import Open, ask, choose_model, ended, picture
from tests.web.test_chat import asked

pytestmark = pytest.mark.slow

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "as it is written"},
        "age": {"type": "integer"},
        "height": {"type": "number"},
        "is_guide": {"type": "boolean"},
        "language": {"type": "string", "enum": ["Quechua", "Aymara", "Spanish"]},
        "towns": {"type": "array", "items": {"type": "object", "properties": {"town": {"type": "string"}}}},
        "home": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "integer"}},
            "required": ["number"],
        },
    },
    "required": ["name", "language", "home"],
}


def edit(page: Any, schema: object = None) -> Any:
    """Open the editor with a schema, and return it."""
    page.get_by_role("button", name="Settings", exact=True).click()
    if schema is not None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        page.get_by_label("JSON schema that answers follow").fill(text)
    page.get_by_role("button", name="Edit the schema as fields").click()
    editor = page.get_by_role("dialog")
    editor.wait_for()
    return editor


def text_of(editor: Any) -> Any:
    return editor.get_by_label("As JSON schema")


def schema_of(editor: Any) -> Any:
    return json.loads(text_of(editor).input_value())


def test_a_schema_is_made_of_fields(fake: Running, script: Script, open_page: Open) -> None:
    page = open_page(fake)
    editor = edit(page)
    editor.get_by_role("button", name="Add a field").click()
    for name, kind in {
        "name": "text",
        "age": "integer",
        "height": "number",
        "is_guide": "yes-no",
        "language": "choice",
        "towns": "list",
        "home": "object",
    }.items():
        page.keyboard.type(name)
        field = editor.get_by_role("group", name=name, exact=True)
        field.get_by_label("Type").select_option(kind)
        if name != "home":
            field.get_by_label("Name", exact=True).press("Enter")
    editor.get_by_role("group", name="name", exact=True).get_by_label("Description").fill("as it is written")
    for name in ("age", "height", "is_guide", "towns"):
        editor.get_by_role("group", name=name, exact=True).get_by_label("Required").uncheck()
    editor.get_by_label("Choices, one per line").fill("Quechua\nAymara\n\nSpanish\n")
    towns = editor.get_by_role("group", name="towns", exact=True)
    towns.get_by_label("Each item is").select_option("object")
    towns.get_by_role("button", name="Add a field to towns").click()
    page.keyboard.type("town")
    towns.get_by_role("group", name="town", exact=True).get_by_label("Required").uncheck()
    home = editor.get_by_role("group", name="home", exact=True)
    home.get_by_role("button", name="Add a field to home").click()
    page.keyboard.type("street")
    street = home.get_by_role("group", name="street")
    street.get_by_label("Required").uncheck()
    street.get_by_label("Name", exact=True).press("Enter")
    page.keyboard.type("number")
    home.get_by_role("group", name="number").get_by_label("Type").select_option("integer")
    wait_until(lambda: schema_of(editor) == PERSON)
    wait_until(lambda: list(schema_of(editor)["properties"]) == list(PERSON["properties"]))
    editor.get_by_role("group", name="language", exact=True).scroll_into_view_if_needed()
    picture(page, "schema")
    editor.get_by_role("button", name="Done").click()
    shown = page.get_by_label("JSON schema that answers follow")
    wait_until(lambda: json.loads(shown.input_value()) == PERSON)
    page.get_by_role("button", name="Close the settings").click()
    ask(page, "Who is it?")
    ended(page)
    assert asked(script).options["format"] == PERSON


@pytest.mark.parametrize(
    "schema", [PERSON, {"type": "object", "title": "T", "description": "d", "properties": {}}]
)
def test_text_becomes_fields_and_nothing_is_lost(
    fake: Running, open_page: Open, schema: dict[str, Any]
) -> None:
    page = open_page(fake)
    editor = edit(page, schema | {"additionalProperties": False})
    count = len(schema["properties"])
    names = editor.get_by_role("group", name="Fields of the answer").locator(":scope > .schema-field")
    wait_until(lambda: names.count() == count)
    editor.get_by_role("button", name="Add a field", exact=True).click()
    page.keyboard.type("more")
    more = {"properties": schema["properties"] | {"more": {"type": "string"}}}
    required = {"required": [*schema.get("required", []), "more"]}
    wait_until(lambda: schema_of(editor) == schema | {"additionalProperties": False} | more | required)
    text_of(editor).fill(json.dumps({"type": "object", "properties": {"only": {"type": "number"}}}))
    only = editor.get_by_role("group", name="only", exact=True)
    assert only.get_by_label("Type").input_value() == "number"
    assert not only.get_by_label("Required").is_checked()
    only.get_by_role("button", name="Remove: only").click()
    wait_until(lambda: text_of(editor).input_value() == "")
    page.keyboard.press("Escape")
    editor.wait_for(state="detached")
    wait_until(lambda: page.get_by_label("JSON schema that answers follow").input_value() == "")


def test_fields_move_by_keyboard(fake: Running, open_page: Open) -> None:
    page = open_page(fake)
    editor = edit(page, {"type": "object", "properties": {n: {"type": "string"} for n in ("a", "b", "c")}})
    name = editor.get_by_role("group", name="a", exact=True).get_by_label("Name", exact=True)
    name.focus()
    page.keyboard.press("Alt+ArrowDown")
    page.keyboard.press("Alt+ArrowDown")
    page.keyboard.press("Alt+ArrowDown")
    wait_until(lambda: list(schema_of(editor)["properties"]) == ["b", "c", "a"])
    page.keyboard.press("Alt+ArrowUp")
    wait_until(lambda: list(schema_of(editor)["properties"]) == ["b", "a", "c"])
    page.keyboard.type("x")  # the name has kept the focus
    wait_until(lambda: list(schema_of(editor)["properties"]) == ["b", "ax", "c"])
    editor.get_by_role("button", name="Move up: ax").press("Enter")
    wait_until(lambda: list(schema_of(editor)["properties"]) == ["ax", "b", "c"])
    wait_until(lambda: page.evaluate("document.activeElement.ariaLabel") == "Move down: ax")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    wait_until(lambda: page.evaluate("document.activeElement.ariaLabel") == "Move up: ax")
    editor.get_by_role("button", name="Remove: b").press("Enter")
    wait_until(lambda: page.evaluate("document.activeElement.value") == "c")
    wait_until(lambda: list(schema_of(editor)["properties"]) == ["c", "ax"])


def test_what_is_wrong_is_said_where_it_is(fake: Running, script: Script, open_page: Open) -> None:
    """An invalid schema is not used; the previous one stays."""
    before = {"type": "object", "properties": {"a": {"type": "string"}}}
    page = open_page(fake)
    editor = edit(page, before)
    editor.get_by_role("button", name="Add a field").click()
    nameless = editor.get_by_role("group", name="field without a name")
    nameless.get_by_text("Give this field a name.").wait_for()
    for name, said in (("a", "Another field here is called a too."), ("12", "A name of only digits")):
        page.keyboard.press("ControlOrMeta+A")
        page.keyboard.type(name)
        editor.get_by_text(said).first.wait_for()
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.type("b")
    other = editor.get_by_role("group", name="b", exact=True)
    other.get_by_label("Type").select_option("choice")
    other.get_by_text("Enter the choices, one per line.").wait_for()
    other.get_by_label("Choices").fill("x\ny\nx")
    other.get_by_text("x is listed twice.").wait_for()
    editor.get_by_text("Until you fix this").wait_for()
    picture(page, "schema-problem")
    wait_until(lambda: schema_of(editor)["properties"].keys() == {"a", "b"})  # as it was when b was right
    other.get_by_label("Choices").fill("x\ny")
    wait_until(lambda: schema_of(editor)["properties"]["b"] == {"type": "string", "enum": ["x", "y"]})
    text_of(editor).fill('{"type": ')
    editor.get_by_text("This is not valid JSON").wait_for()
    text_of(editor).fill("[]")
    editor.get_by_text("A schema must be an object.").wait_for()
    editor.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Close the settings").click()
    ask(page, "x")
    ended(page)
    assert asked(script).options["format"]["properties"]["b"]["enum"] == ["x", "y"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}}, "minLength at a"),
        (
            {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
            'the type ["string","null"] at a',
        ),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {}}}, "$defs"),
        ({"type": "array", "items": {"type": "string"}}, "answers that are no objects"),
        ({"type": "object", "properties": {"a": {"enum": [1, 2]}}}, "choices that are no texts at a"),
        ({"type": "object", "properties": {"a": {"type": "array"}}}, "no schema at a[]"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required names without a field"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "additionalProperties"),
        ({"anyOf": [{"type": "object"}]}, "anyOf"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_form_stays_text(
    fake: Running, script: Script, open_page: Open, schema: dict[str, Any], said: str
) -> None:
    page = open_page(fake)
    editor = edit(page, schema)
    assert f"there is no form for {said}." in editor.inner_text()
    assert editor.get_by_label("Name", exact=True).count() == 0
    editor.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Close the settings").click()
    ask(page, "x")
    ended(page)
    assert asked(script).options["format"] == schema


def test_the_server_follows_a_made_schema(guided: Running, open_page: Open) -> None:
    page = open_page(guided)
    choose_model(page, "guide:latest")
    editor = edit(page)
    editor.get_by_role("button", name="Add a field").click()
    page.keyboard.type("animal")
    field = editor.get_by_role("group", name="animal", exact=True)
    field.get_by_label("Type").select_option("choice")
    field.get_by_label("Choices").fill("llama\ncondor")
    editor.get_by_role("button", name="Done").click()
    page.get_by_role("button", name="Close the settings").click()
    ask(page, "Which animal carries loads?")
    answer = json.loads(ended(page).locator(".markdown").inner_text())
    assert answer in ({"animal": "llama"}, {"animal": "condor"})
