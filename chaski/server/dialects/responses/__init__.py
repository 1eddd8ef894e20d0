"""OpenAI's Responses API as pure functions, which convert bodies to requests and events to items."""

from chaski.server.dialects.responses.kept_input import input_items
from chaski.server.dialects.responses.replies import Items
from chaski.server.dialects.responses.requests import ResponseRequest, previous_of, read_response

__all__ = ["Items", "ResponseRequest", "input_items", "previous_of", "read_response"]
