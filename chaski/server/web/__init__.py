"""The web page: its files, as they are served to browsers."""

from chaski.server.web.files import PageFile, page_file, page_headers, wants_page

__all__ = ["PageFile", "page_file", "page_headers", "wants_page"]
