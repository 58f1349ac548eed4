"""What changes something: redrive, edit, park, purge, export. Each is a form, allowed by `--allow`."""

from __future__ import annotations

from starlette.routing import Route

from redelivery.ui.page import Page


def routes(page: Page) -> list[Route]:
    """Return the routes: of a change `Route(path, page.action(PERMISSION, view), methods=["POST"])`."""
    del page
    return []
