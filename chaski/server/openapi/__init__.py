"""The description of the APIs: an OpenAPI document, and a page for people.

Endpoints come from the routes of the application and their handlers' docstrings, fields from one table.
"""

from chaski.server.openapi.document import document
from chaski.server.openapi.page import page

__all__ = ["document", "page"]
