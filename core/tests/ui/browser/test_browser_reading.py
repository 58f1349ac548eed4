"""The page in a real browser: what an operator reads, by mouse, by keyboard, without scripts; and who gets in."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from ui_browser import Screen, Served
from ui_page import bury

from redelivery.contract.message import Message

from .conftest import FOREIGN, Serve

pytestmark = pytest.mark.browser

HOSTILE = b"<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)>"


def orders(count: int) -> list[Message]:
    return [Message(id=f"o-{number}", value=b'{"order": %d}' % number, key=b"k") for number in range(count)]


def enter(browser: Screen, served: Served) -> None:
    """Open the start URL, and wait for all that is found out about its places."""
    browser.open(served.start)
    settle(browser)


def settle(browser: Screen) -> None:
    browser.one(".card")
    browser.until(lambda: not browser.all('.card[aria-busy="true"]'), "the looks")


def to_letters(browser: Screen) -> None:
    """Go from the first page to the letters of its first group."""
    browser.leave(browser.one(".card h2 a").click)
    settle(browser)
    browser.leave(browser.one("table.list a.item").click)


def test_from_the_start_url_to_a_letter_and_back(browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(3))
    served = serve()
    enter(browser, served)
    assert "token" not in browser.path
    assert "3 letters" in browser.text
    assert "read-only" in browser.text
    to_letters(browser)
    assert "group%3D" in browser.path
    browser.follow("o-1")
    assert '"order": 1' in browser.one("pre.body").text
    assert "NO_AIRPORT" in browser.text
    browser.follow("hex")
    assert "7b 22 6f" in browser.one("pre.body").text
    browser.follow("letters like this")
    assert "o-2" in browser.text
    browser.follow("redelivery")
    assert browser.path == "/"
    assert [each for each in browser.refused() if "favicon" not in each] == []


def test_by_keyboard_alone(browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(3))
    enter(browser, serve())

    def keys(*pressed: str) -> None:
        browser.driver.switch_to.active_element.send_keys(*pressed)

    keys("j")
    browser.leave(lambda: keys(Keys.ENTER))
    settle(browser)
    keys("j")
    browser.leave(lambda: keys(Keys.ENTER))
    keys("j", "j", "k")
    focused = browser.driver.switch_to.active_element
    assert focused.text == "o-0"
    browser.leave(lambda: keys(Keys.ENTER))
    assert '"order": 0' in browser.text
    browser.leave(lambda: keys("u"))
    assert "group%3D" in browser.path
    keys("/")
    field = browser.driver.switch_to.active_element
    assert field.get_attribute("id") == "where"
    field.send_keys("id=o-2")
    browser.leave(lambda: field.send_keys(Keys.ENTER))
    assert [each.text for each in browser.all("table.list a.item")] == ["o-2"]


def test_everything_is_read_without_scripts(plain_browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(3))
    browser = plain_browser
    served = serve()
    browser.open(served.start)  # which goes on by itself
    browser.until(lambda: browser.path == "/", "the first page")
    browser.until(lambda: "3 letters" in browser.text, "the count: the page loads itself again")
    to_letters(browser)
    browser.follow("o-1")
    assert '"order": 1' in browser.text


def test_the_start_url_works_once(browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(1))
    served = serve()
    enter(browser, served)
    browser.open(served.start)
    browser.until(lambda: browser.path == "/", "the page: this browser has the session")
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    assert "has been used" in browser.open(served.start)
    assert "has no session here" in browser.open(f"{served.origin}/places")
    assert "letter" not in browser.text


def test_a_name_that_somebody_points_at_this_machine_gets_nothing(browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(1))
    served = serve()
    enter(browser, served)
    foreign = served.origin.replace("127.0.0.1", FOREIGN)
    assert "answers only at 127.0.0.1" in browser.open(foreign)
    token = served.start.partition("token=")[2]
    assert "answers only at 127.0.0.1" in browser.open(f"{foreign}/start?token={token}")


@contextmanager
def another_site(page: str) -> Iterator[str]:
    """Serve one page from another origin of this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("from_where", ["127.0.0.1", "localhost", FOREIGN])
def test_a_form_of_another_site_does_nothing(browser: Screen, serve: Serve, url: str, from_where: str) -> None:
    """Another port of this machine is the same site for a cookie, so the cookie is sent: the origin is refused."""
    bury(url, *orders(1))
    served = serve("--allow", "redrive,edit,park,purge")
    enter(browser, served)
    slug = browser.one(".card h2 a").get_attribute("href")
    form = f'<form method="post" action="{slug}/look"><input name="csrf" value="x"></form>'
    with another_site(f"{form}<script>document.forms[0].submit()</script>") as site:
        browser.open(site.replace("127.0.0.1", from_where))
        browser.until(lambda: served.origin in browser.driver.current_url, "the form was sent")
        said = browser.text
    assert "comes from another site, so nothing was done" in said or "has no session here" in said
    if from_where == "127.0.0.1":
        assert "so nothing was done" in said  # it had the cookie


def test_hostile_letters_run_no_script(browser: Screen, serve: Serve, url: str) -> None:
    name = "x-<script>alert(4)</script>"
    bury(
        url,
        Message(id="<b onmouseover=alert(5)>id</b>", value=HOSTILE, key=HOSTILE, headers=((name, HOSTILE),)),
        Message(id="json", value=b'{"a</pre><script>alert(6)</script>": "\\u202e</script>"}'),
    )
    enter(browser, serve())
    to_letters(browser)
    for number in range(2):
        browser.leave(browser.all("table.list a.item")[number].click)
        assert "<script>" in browser.text  # seen as text
        assert not browser.all("main script, main img, main svg[onload], main b")
        assert not browser.all('[onload], [onerror], [onmouseover], [style], a[href^="javascript:"]')
        browser.follow("letters like this")
    inserted = (
        "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 2\">'); return window.ran"
    )
    assert browser.driver.execute_script(inserted) is None  # even a defect of ours would be stopped
    assert any("Content Security Policy" in each for each in browser.refused())


def test_it_only_shows_by_default(browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(2))
    enter(browser, serve())
    to_letters(browser)
    for step in (lambda: None, lambda: browser.follow("o-0")):
        step()
        forms = [(each.get_attribute("method"), each.get_attribute("action")) for each in browser.all("form")]
        assert [action for method, action in forms if method == "post" and not str(action).endswith("/export")] == []
    assert browser.driver.find_element(By.CLASS_NAME, "mode").text == "read-only"
