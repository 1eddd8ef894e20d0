"""LangChain: text, stream, an agent with a tool, structured output and vectors, with each of its packages."""

import os

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL = os.environ["CHASKI_URL"]
MODELS = (
    ChatOllama(model="speaker", base_url=URL),
    ChatOpenAI(model="speaker", base_url=f"{URL}/v1", api_key="unused"),
    ChatOpenAI(model="speaker", base_url=f"{URL}/v1", api_key="unused", use_responses_api=True),
    ChatAnthropic(model="speaker", base_url=URL, api_key="unused"),
)


class City(BaseModel):
    city: str


def weather(city: str) -> str:
    """The weather of a city."""
    assert city == "Cusco"
    return "sunny"


for model in MODELS:
    assert model.invoke("hello").text == "Good morning."
    assert "".join(piece.text for piece in model.stream("hello")) == "Good morning."
    asked = {"messages": [{"role": "user", "content": "What is the weather?"}]}
    assert create_agent(model, tools=[weather]).invoke(asked)["messages"][-1].text == "It is fine."

formed = MODELS[1].with_structured_output(City, method="json_schema").invoke("Which city?")
assert formed == City(city="Lima")
assert len(OllamaEmbeddings(model="vectors", base_url=URL).embed_query("hello")) > 1
print("ok")
