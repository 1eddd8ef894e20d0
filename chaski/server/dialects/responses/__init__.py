"""OpenAI's Responses API, as pure functions: its requests to wishes, events to its items."""

from chaski.server.dialects.responses.kept_input import input_items, page_of_items
from chaski.server.dialects.responses.replies import Items
from chaski.server.dialects.responses.requests import ResponseWish, previous_of, read_response

__all__ = ["Items", "ResponseWish", "input_items", "page_of_items", "previous_of", "read_response"]
