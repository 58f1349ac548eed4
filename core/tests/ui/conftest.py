"""The fixtures of the page's tests."""

from ui_page import opened, url

__all__ = ["opened", "url"]
