"""A browser for the tests of this folder: one for most of them, as it takes seconds to start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from ui_browser import CHROMIUM, DRIVER, Screen, Served, programs, screen


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", action="store_true", help="renew the pictures of the page in docs/images")


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


Picture = Callable[[str, Screen], None]
IMAGES = Path(__file__).parents[4] / "docs" / "images"


@pytest.fixture
def picture(request: pytest.FixtureRequest) -> Picture:
    """Return a function that keeps what the browser shows, as `docs/images/ui-NAME.png`; only with `--screenshots`."""

    def keep(name: str, shown: Screen) -> None:
        if not request.config.getoption("--screenshots", default=False):
            return
        shown.driver.set_window_size(1000, min(1000, 150 + shown.driver.execute_script(HEIGHT)))
        data = shown.driver.get_screenshot_as_png()
        shown.driver.set_window_size(1180, 900)
        assert len(data) < MOST, f"{name}: {len(data):,} bytes"
        IMAGES.mkdir(exist_ok=True)
        (IMAGES / f"ui-{name}.png").write_bytes(data)

    return keep


HEIGHT = "return document.body.offsetHeight"
MOST = 150_000
Serve = Callable[..., Served]


@pytest.fixture
def serve(installed_browser: None, url: str, tmp_path: Path) -> Iterator[Serve]:
    """Return a function that starts the page of `url`, or of other places, with arguments of the command line."""
    with ExitStack() as started:

        def start(*arguments: str, places: list[str] | None = None, named: Mapping[str, str] | None = None) -> Served:
            if named:
                config = tmp_path / "redelivery.toml"
                tables = (f"[places.{name}]\nurl = {json.dumps(where)}\n" for name, where in named.items())
                config.write_text("\n".join(tables), encoding="utf-8")
                arguments = (*arguments, "--config", str(config))
            return started.enter_context(Served(places or [url], *arguments, state=tmp_path / "state"))

        yield start
