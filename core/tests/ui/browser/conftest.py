"""A browser for the tests of this folder: one for most of them, as it takes seconds to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from ui_browser import CHROMIUM, DRIVER, Screen, Served, programs, screen

#: Another site's name, which its owner has point to this machine.
FOREIGN = "rebound.example"


@pytest.fixture(scope="session")
def installed_browser(request: pytest.FixtureRequest) -> None:
    """Need Chromium and its driver: without them a test is skipped, or fails where brokers are required."""
    if programs() is not None:
        return
    reason = (
        f"a browser is missing: install {CHROMIUM[0]} and {DRIVER} (Debian: apt-get install chromium chromium-driver)"
    )
    if request.config.getoption("--require-brokers", default=False):
        pytest.fail(f"--require-brokers: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def one_browser(installed_browser: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    with screen(tmp_path_factory.mktemp("browser"), foreign=FOREIGN) as shown:
        yield shown


@pytest.fixture
def browser(one_browser: Screen) -> Iterator[Screen]:
    """A browser that knows nothing of earlier tests."""
    one_browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    one_browser.refused()
    yield one_browser
    one_browser.open("about:blank")


@pytest.fixture
def plain_browser(installed_browser: None, tmp_path: Path) -> Iterator[Screen]:
    """A browser whose pages run no script."""
    folder = tmp_path / "plain"
    folder.mkdir()
    with screen(folder, scripts=False) as shown:
        yield shown


Serve = Callable[..., Served]


@pytest.fixture
def serve(installed_browser: None, url: str, tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts the page of `url`, or of other places, with arguments of the command line."""
    with ExitStack() as started:

        def start(*arguments: str, places: list[str] | None = None) -> Served:
            return started.enter_context(Served(places or [url], *arguments, state=tmp_path / "state"))

        yield start
