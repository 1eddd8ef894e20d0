"""instructor over OpenAI's chat: a schema as format, and as a forced call."""

import os
from typing import Literal

import instructor
import openai
from pydantic import BaseModel


class City(BaseModel):
    city: Literal["Lima"]


client = openai.OpenAI(base_url=f"{os.environ['CHASKI_URL']}/v1", api_key="unused")
for mode in (instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    city = instructor.from_openai(client, mode=mode).chat.completions.create(
        model="speaker", messages=[{"role": "user", "content": "Which city?"}], response_model=City
    )
    assert city.city == "Lima", mode
print("ok")
