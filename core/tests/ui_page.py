"""A page over a place of this process, and a simple browser: httpx, with a browser's headers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from redelivery.codes import Code
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.formats import dialects
from redelivery.registry import connect
from redelivery.ui.app import application
from redelivery.ui.page import Page, Settings
from redelivery.ui.source import Source

PORT = 8765
ORIGIN = f"http://127.0.0.1:{PORT}"
CONTEXT = ErrorContext(
    reason="no such airport: 'größe'",
    kind="permanent",
    code=Code.INVALID_MESSAGE,
    native_code="NO_AIRPORT",
    attempts=3,
    attempts_total=3,
    hops=1,
)


def bury(url: str, *messages: Message, context: ErrorContext = CONTEXT) -> None:
    """Put letters into the native place of a destination."""
    with connect(url) as broker:
        options: dict[str, Any] = {"dialect": "json", "limits": broker.capabilities.limits, "prefix": "ce-"}
        letters = [dialects.attach(each, context, key=None, **options) for each in messages]
        with connect(broker.native_sink()) as sink, sink.sender() as sender:
            sender.send(Batch.of(letters), deadline=time.monotonic() + 10)
            assert [len(settled.failures) for settled in sender.collect(5.0)] == [0]


class Browser(TestClient):
    """One browser with its cookies, at a page."""

    def __init__(self, app: Any, page: Page) -> None:
        super().__init__(app, base_url=ORIGIN, follow_redirects=False, raise_server_exceptions=True)
        self.page = page

    def begin(self) -> None:
        """Open the start URL."""
        assert self.get("/start", params={"token": self.page.session.token}).status_code == 200

    def submit(self, path: str, data: dict[str, Any] | None = None, **headers: str) -> Any:
        """Send a form, as a page of ours has the browser do."""
        given = {"origin": ORIGIN, "sec-fetch-site": "same-origin", **headers}
        return self.post(path, data={"csrf": self.page.session.csrf, **(data or {})}, headers=given)

    def settled(self, path: str, seconds: float = 20.0) -> str:
        """Return a page once nothing goes on behind it."""
        ends = time.monotonic() + seconds
        while True:
            text = self.get(path).text
            if 'aria-busy="true"' not in text or time.monotonic() > ends:
                return text
            time.sleep(0.02)  # the look has its own thread


Opened = Callable[..., Browser]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return f"sqlite:{tmp_path}/q.db?queue=orders"


@pytest.fixture
def opened(url: str) -> Iterator[Opened]:
    """Return a function that starts a page of the place `orders`, with settings, and opens it."""
    started: list[Browser] = []

    def start(*sources: Source, begin: bool = True, **settings: Any) -> Browser:
        shown = sources or (Source(slug="orders", name="orders", url=url),)
        app, page = application(replace(Settings(sources=shown), **settings), PORT)
        browser = Browser(app, page)
        browser.__enter__()
        started.append(browser)
        if begin:
            browser.begin()
        return browser

    yield start
    for each in started:
        each.__exit__(None, None, None)
