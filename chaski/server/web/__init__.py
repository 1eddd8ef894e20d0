"""The page for people: its files, as they are served to browsers."""

from chaski.server.web.files import PAGE_HEADERS, PageFile, page_file, wants_page

__all__ = ["PAGE_HEADERS", "PageFile", "page_file", "wants_page"]
