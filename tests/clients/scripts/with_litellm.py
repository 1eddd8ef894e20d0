"""litellm: chat, stream, tools and structured output with three providers, and embeddings."""

import json
import os

import litellm

URL = os.environ["CHASKI_URL"]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CITY = {
    "type": "json_schema",
    "json_schema": {
        "name": "city",
        "schema": {"type": "object", "properties": {"city": {"enum": ["Lima"]}}, "required": ["city"]},
    },
}
PROVIDERS = {
    "ollama_chat/speaker": {"api_base": URL},
    "openai/speaker": {"api_base": f"{URL}/v1", "api_key": "unused"},
    "anthropic/speaker": {"api_base": URL, "api_key": "unused"},
}


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


for model, place in PROVIDERS.items():
    whole = litellm.completion(model=model, messages=ask("hello"), **place)
    assert whole.choices[0].message.content == "Good morning.", whole
    chunks = litellm.completion(model=model, messages=ask("hello"), stream=True, **place)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Good morning."

    messages = ask("What is the weather?")
    called = litellm.completion(model=model, messages=messages, tools=[WEATHER], **place)
    (call,) = called.choices[0].message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Cusco"}
    messages += [
        called.choices[0].message.model_dump(),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    told = litellm.completion(model=model, messages=messages, tools=[WEATHER], **place)
    assert told.choices[0].message.content == "It is fine.", told

    if not model.startswith("anthropic/"):  # For it, litellm forces a call of its own tool.
        formed = litellm.completion(model=model, messages=ask("Which city?"), response_format=CITY, **place)
        assert json.loads(formed.choices[0].message.content) == {"city": "Lima"}, formed

for model, place in {
    "ollama/vectors": {"api_base": URL},
    "openai/vectors": {"api_base": f"{URL}/v1", "api_key": "unused"},
}.items():
    vectors = litellm.embedding(model=model, input=["the end", "an end"], **place)
    assert len(vectors.data) == 2
print("ok")
