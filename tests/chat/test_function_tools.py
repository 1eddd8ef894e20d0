"""Functions as tools of a conversation: the description that a model gets, and the calls that it makes."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

import chaski
from chaski.chat.messages import tool_list
from chaski.errors import OptionError
from tests.speaking_llama import write_speaking_llama


def weather(city: str, days: int = 1, unit: Literal["C", "F"] | None = None) -> str:
    """Return the weather
    of a city.

    More about it.

    Args:
        city (str): Name of the city,
            with its country: Peru, for example.
        days: Number of days.

    Returns:
        str: a text
    """
    return f"sunny in {city}"


def described(tool: Any) -> Any:
    (found,) = tool_list([tool])
    assert found["type"] == "function"
    return found["function"]


def parameters(tool: Any) -> Any:
    return described(tool)["parameters"]


def test_the_description_of_a_function() -> None:
    assert described(weather) == {
        "name": "weather",
        "description": "Return the weather\nof a city.\n\nMore about it.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {
                    "type": "string",
                    "description": "Name of the city, with its country: Peru, for example.",
                },
                "days": {"type": "integer", "description": "Number of days."},
                "unit": {"enum": ["C", "F"], "type": "string"},
            },
            "required": ["city"],
        },
    }


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Place:
    name: str
    at: tuple[float, float]


def test_types_of_parameters() -> None:
    def search(
        untyped,
        a: bool,
        b: float,
        c: list[str],
        d: dict[str, int],
        e: int | str,
        f: Any,
        g: Annotated[int, "how many"],
        h: Size,
        i: list[Place],
        *rest: int,
        last: str = "",
        **more: int,
    ) -> None: ...

    found = parameters(search)
    properties = found["properties"]
    assert list(properties) == ["untyped", *"abcdefghi", "last"]
    assert found["required"] == ["untyped", *"abcdefghi"]
    assert properties["untyped"] == properties["last"] == {"type": "string"}
    assert properties["a"] == {"type": "boolean"}
    assert properties["c"] == {"type": "array", "items": {"type": "string"}}
    assert properties["d"]["additionalProperties"] == {"type": "integer"}
    assert {each["type"] for each in properties["e"]["anyOf"]} == {"integer", "string"}
    assert properties["f"] == {}
    assert properties["g"] == {"type": "integer", "description": "how many"}
    assert properties["h"] == {"$ref": "#/$defs/Size"}
    assert properties["i"]["items"] == {"$ref": "#/$defs/Place"}
    assert found["$defs"]["Size"]["enum"] == ["l", "s"]
    assert found["$defs"]["Place"]["required"] == ["name", "at"]


def test_kinds_of_functions() -> None:
    class Station:
        def measure(self, where: str) -> str:
            """Measure."""
            return where

    @functools.wraps(weather)
    def wrapped(*given: Any, **named: Any) -> Any:
        return weather(*given, **named)

    async def later(when: int) -> None:
        """Wait.
        Args:
          when: Seconds."""

    def bare() -> None: ...

    assert parameters(Station().measure)["required"] == ["where"]
    assert described(wrapped) == described(weather)
    assert (described(later)["description"], parameters(later)["properties"]["when"]) == (
        "Wait.",
        {"type": "integer", "description": "Seconds."},
    )
    assert described(bare) == {
        "name": "bare",
        "description": "",
        "parameters": {"type": "object", "properties": {}, "required": []},
    }
    mapping = {"type": "function", "function": {"name": "add"}}
    assert [tool["function"]["name"] for tool in tool_list([bare, mapping])] == ["bare", "add"]


def test_what_is_no_tool() -> None:
    def wrong(a: Iterator[complex]) -> None: ...

    def unknown(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for tool, said in (
        (lambda x: x, "has no name"),
        (functools.partial(weather, "x"), "has no name"),
        (wrong, "parameter 'a' of tool wrong"),
        (unknown, "type hints of tool unknown cannot be read"),
        (max, "cannot be read"),
        (Station, "must be a function"),
        (7, "must be a function"),
    ):
        with pytest.raises(OptionError, match=said):
            tool_list([tool])


class Station:
    """A class is no function."""


SUNNY = "sunny in Cusco"
SAYINGS = {
    "Weather?": ["<tool_call>", '{"name": "weather", ', '"arguments": {"city": "Cusco"}}', "</tool_call>"],
    SUNNY: ["It is ", "fine."],
}


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_speaking_llama(tmp_path_factory.mktemp("speaking") / "speaking.gguf", SAYINGS)


def test_a_conversation_with_a_function(speaker: Path) -> None:
    options: Any = {"temperature": 0, "num_predict": 60}
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]
    with chaski.load(speaker, threads=1) as model:
        answer = model.chat(messages, tools=[weather], **options)
        (call,) = answer.tool_calls
        assert (call.name, call.arguments) == ("weather", {"city": "Cusco"})
        result = weather(**call.arguments)
        messages += [answer, {"role": "tool", "tool_name": call.name, "content": result}]
        last = model.chat(messages, [weather], **options)
        assert last.text == "It is fine."
        assert last.prompt_tokens == model.chat(messages, tool_list([weather]), **options).prompt_tokens
