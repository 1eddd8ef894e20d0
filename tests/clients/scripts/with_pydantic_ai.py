"""pydantic-ai: text, stream, tools and structured output with three APIs."""

import asyncio
import os
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ["CHASKI_URL"]


class City(BaseModel):
    city: Literal["Lima"]


def weather(city: str) -> str:
    """The weather of a city."""
    assert city == "Cusco"
    return "sunny"


openai = OpenAIProvider(base_url=f"{URL}/v1", api_key="unused")
MODELS = (
    OpenAIChatModel("speaker", provider=openai),
    OpenAIResponsesModel("speaker", provider=openai),
    AnthropicModel("speaker", provider=AnthropicProvider(base_url=URL, api_key="unused")),
)


async def streamed(agent: Agent[None, str]) -> str:
    async with agent.run_stream("hello") as result:
        return await result.get_output()


for model in MODELS:
    agent = Agent(model, tools=[weather])
    assert agent.run_sync("hello").output == "Good morning."
    assert asyncio.run(streamed(Agent(model))) == "Good morning."
    assert agent.run_sync("What is the weather?").output == "It is fine."

formed = Agent(MODELS[0], output_type=NativeOutput(City)).run_sync("Which city?")
assert formed.output == City(city="Lima")
print("ok")
