"""The description of the APIs: an OpenAPI document, and an HTML page.

Endpoints come from the application's routes and their handlers' docstrings, and fields from the tables in
`chaski.server.fields`.
"""

from chaski.server.openapi.document import document
from chaski.server.openapi.page import page

__all__ = ["document", "page"]
