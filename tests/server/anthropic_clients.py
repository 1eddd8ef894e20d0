"""Clients of Anthropic's API."""

from __future__ import annotations

from typing import Any

from anthropic import beta_tool

from chaski.chat.requests import Generate
from tests.server.fake_worker import Script

QUESTION: Any = {"role": "user", "content": "how warm is it?"}
ASKED: Any = {"model": "thinker", "max_tokens": 50}


@beta_tool
def weather(city: str) -> str:
    """Return the temperature in a city."""
    return f"12 degrees in {city}"


def prompts(script: Script) -> list[str]:
    """Return the prompts without the description of tools."""
    asked = [bytes(each.prompt).decode() for each in script.asked if isinstance(each, Generate)]
    return [prompt[prompt.index("[user]") :].partition("<think>")[0] for prompt in asked]
