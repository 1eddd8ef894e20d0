"""llama-index: chat, stream, tools and structured output with two packages, and embeddings."""

import os
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.ollama import OllamaEmbedding
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

URL = os.environ["CHASKI_URL"]


class City(BaseModel):
    city: Literal["Lima"]


def weather(city: str) -> str:
    """The weather of a city."""
    assert city == "Cusco"
    return "sunny"


native = Ollama(model="speaker", base_url=URL, request_timeout=60, thinking=False)
like = OpenAILike(
    model="speaker",
    api_base=f"{URL}/v1",
    api_key="unused",
    is_chat_model=True,
    is_function_calling_model=True,
)
for model in (native, like):
    hello = [ChatMessage(role="user", content="hello")]
    assert model.chat(hello).message.content == "Good morning."
    assert "".join(piece.delta or "" for piece in model.stream_chat(hello)) == "Good morning."
    told = model.predict_and_call([FunctionTool.from_defaults(weather)], user_msg="What is the weather?")
    assert "sunny" in str(told)

formed = native.as_structured_llm(City).chat([ChatMessage(role="user", content="Which city?")])
assert formed.raw == City(city="Lima"), formed
vectors = OllamaEmbedding(model_name="vectors", base_url=URL).get_text_embedding_batch(["the end", "an end"])
assert len(vectors) == 2
print("ok")
