"""The web page: its files, as they are served to browsers."""

from chaski.server.web.files import PageFile, icon_file, page_file, page_headers, wants_page

__all__ = ["PageFile", "icon_file", "page_file", "page_headers", "wants_page"]
