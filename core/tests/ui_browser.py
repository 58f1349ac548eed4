"""The page in its own process, and Chromium at it. Nothing is downloaded: both programs are the system's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

CHROMIUM: Final = ("chromium", "chromium-browser", "google-chrome")
DRIVER: Final = "chromedriver"
#: Seconds in which the page shows what is waited for, on a machine that does much else.
PATIENCE: Final = 30.0
_FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--force-device-scale-factor=1",
    "--window-size=1180,900",
)


def programs() -> tuple[str, str] | None:
    """Return the paths of a Chromium and of its driver; None where one is missing."""
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which(DRIVER)
    return None if browser is None or driver is None else (browser, driver)


#: What an element raises while another page takes its place.
_MOVING: Final = (StaleElementReferenceException, NoSuchElementException)


class Screen:
    """A browser with one tab, as a person sees it.

    Args:
        folder: new and empty, for the browser's profile and downloads.
        foreign: a name of another site, which its owner has point to this machine.
        scripts: whether pages may run scripts.
        dark: whether the person likes dark pages.
    """

    def __init__(self, folder: Path, *, foreign: str = "", scripts: bool = True, dark: bool = False) -> None:
        found = programs()
        assert found is not None
        options = ChromeOptions()
        options.binary_location = found[0]
        for each in (*_FLAGS, f"--user-data-dir={folder / 'profile'}"):
            options.add_argument(each)
        if foreign:
            options.add_argument(f"--host-resolver-rules=MAP {foreign} 127.0.0.1")
        if dark:
            options.add_argument("--force-dark-mode")
            options.add_argument("--blink-settings=preferredColorScheme=0")
        self.downloads = folder / "downloads"
        self.downloads.mkdir()
        wanted: dict[str, Any] = {"download.default_directory": str(self.downloads)}
        if not scripts:
            wanted["profile.managed_default_content_settings.javascript"] = 2
        options.add_experimental_option("prefs", wanted)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options=options, service=Service(executable_path=found[1]))
        self.driver.set_page_load_timeout(60)

    def open(self, url: str) -> str:
        """Open a URL; return the page's text. A page that leads on at once may have no body when it is asked."""
        self.driver.get(url)
        shown: list[str] = []
        self.until(lambda: not shown.append(self.text), "a page")
        return shown[0]

    @property
    def text(self) -> str:
        """The text that a person reads."""
        return self.driver.find_element(By.TAG_NAME, "body").text

    @property
    def path(self) -> str:
        """The path and query of the page."""
        return re.sub(r"^https?://[^/]+", "", self.driver.current_url)

    def all(self, css: str) -> list[WebElement]:
        """Return the elements of a CSS selector."""
        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def one(self, css: str) -> WebElement:
        """Return the first element of a CSS selector, once it exists."""
        self.until(lambda: bool(self.all(css)), css)
        return self.all(css)[0]

    def link(self, text: str) -> WebElement:
        """Return the link with a text in it, once it exists."""
        return self._with_text("a", text)

    def button(self, text: str) -> WebElement:
        """Return the button with a text in it, once it exists."""
        return self._with_text("button", text)

    def press(self, text: str) -> None:
        """Press a button, and wait until the next page is loaded."""
        self.leave(self.button(text).click)

    def follow(self, text: str) -> None:
        """Follow a link, and wait until the next page is loaded."""
        self.leave(self.link(text).click)

    def leave(self, act: Callable[[], object]) -> None:
        """Do what leads to another page, and wait until that one is loaded."""
        before = self.driver.find_element(By.TAG_NAME, "html")
        act()
        self.until(lambda: _is_gone(before), "another page")
        self.until(lambda: bool(self.all("footer, pre, body")), "a page")

    def fill(self, css: str, text: str) -> None:
        """Put a text into a field."""
        field = self.one(css)
        field.clear()
        field.send_keys(text)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds. The page may change under it."""
        wait = WebDriverWait(self.driver, PATIENCE, 0.05, ignored_exceptions=_MOVING)
        wait.until(lambda _: holds(), f"waited for {what}")

    def reads(self, text: str) -> None:
        """Wait until the page has a text."""
        self.until(lambda: text in self.text, f"the text {text!r}")

    def refused(self) -> list[str]:
        """Return what the browser's console says since the last call: a refused script is in it."""
        return [str(each["message"]) for each in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()

    def _with_text(self, tag: str, text: str) -> WebElement:
        def found() -> list[WebElement]:
            return [each for each in self.all(tag) if text in each.text and each.is_displayed()]

        self.until(lambda: bool(found()), f"a <{tag}> with the text {text!r}")
        return found()[0]


def _is_gone(element: WebElement) -> bool:
    try:
        _ = element.tag_name
    except StaleElementReferenceException:
        return True
    return False


class Served:
    """A page that `redelivery ui` serves, in its own process.

    Attributes:
        start: the start URL.
        origin: of all its pages.
        process: that serves it.
    """

    def __init__(self, places: list[str], *arguments: str, state: Path) -> None:
        command = [sys.executable, "-m", "redelivery", "ui", *places, "--no-browser", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=state.parent,
            env={**os.environ, "XDG_STATE_HOME": str(state), "PYTHONUNBUFFERED": "1"},
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+)/start\?token=\S+", said)
        assert found is not None, said
        self.start, self.origin = found[0], found[1]

    @property
    def port(self) -> int:
        """Where it is served."""
        return int(self.origin.rpartition(":")[2])

    def memory(self) -> int:
        """Return how much memory its process has held at most, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024

    def kill(self) -> None:
        """End it at once, as a power cut would."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def screen(folder: Path, **settings: Any) -> Iterator[Screen]:
    """Open a browser, and end it."""
    shown = Screen(folder, **settings)
    try:
        yield shown
    finally:
        shown.close()
