"""The application: routes, static files, and the safety around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from redelivery.ui import operations, views
from redelivery.ui.page import Page, Settings
from redelivery.ui.safety import Safety, Session

_STATIC: Final = Path(__file__).parent / "static"


def application(settings: Settings, port: int) -> tuple[ASGIApp, Page]:
    """Return the application, and the page that it serves.

    Args:
        settings: what the page is started with.
        port: where it is served; the Host header is checked against it.

    Raises:
        ConfigurationError: a setting is wrong.
    """
    session = Session(port)
    page = Page(settings, session)

    async def not_found(_request: Request, _error: Exception) -> Response:
        return page.error(404, "This page has nothing at this address.")

    async def wrong_method(_request: Request, _error: Exception) -> Response:
        return page.error(405, "This address is not used in this way.")

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        for shelf in page.shelves.values():
            shelf.begin()
        yield
        await run_in_threadpool(operations.end, page)

    app = Starlette(
        routes=[*views.routes(page), *operations.routes(page), Mount("/static", StaticFiles(directory=_STATIC))],
        exception_handlers={404: not_found, 405: wrong_method},
        lifespan=lifespan,
    )
    return Safety(app, session, port, page.error), page
