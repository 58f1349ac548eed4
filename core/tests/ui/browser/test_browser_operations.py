"""Operations in a real browser: dry run, confirmation, progress that survives, edit with its diff, parked letters.

With `--screenshots` the pages of these flows are the pictures of the documents.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ui_browser import Screen
from ui_page import bury

from redelivery.contract.message import Message
from redelivery.deadletters.queue import dead_letters

from .conftest import Picture, Serve
from .test_browser_reading import enter, orders, settle

pytestmark = pytest.mark.browser

#: The place `orders`, as of the folder in which the page is started: a picture shows no path of a machine.
NAMED = {"orders": "sqlite:q.db?queue=orders"}
ALL = ("--allow", "redrive,edit,park,purge")


def remaining(url: str) -> int:
    with dead_letters(url) as dlq:
        return sum(1 for _ in dlq)


def to_all_letters(browser: Screen) -> None:
    browser.leave(browser.one(".card h2 a").click)
    settle(browser)
    browser.follow("All letters")


def test_a_redrive_from_dry_run_to_done(browser: Screen, serve: Serve, url: str, picture: Picture) -> None:
    bury(url, *orders(3))
    enter(browser, serve(*ALL, places=["orders"], named=NAMED))
    to_all_letters(browser)
    browser.press("Send back")
    browser.reads("3 letters would be sent")
    picture("dry-run", browser)
    browser.press("Send back: 3 letters")
    browser.reads("3 of 3 sent")
    browser.until(lambda: "done" in browser.one(".tag").text, "its end")
    browser.driver.refresh()
    browser.reads("3 of 3 sent")
    assert remaining(url) == 0


def test_a_redrive_without_scripts(plain_browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(2))
    browser = plain_browser
    browser.open(serve(*ALL).start)
    browser.until(lambda: "2 letters" in browser.text, "the count")
    to_all_letters(browser)
    browser.press("Send back")
    browser.reads("2 letters would be sent")
    browser.press("Send back: 2 letters")
    browser.reads("2 of 2 sent")
    assert remaining(url) == 0


def test_cancel_kill_and_resume(browser: Screen, serve: Serve, url: str) -> None:
    bury(url, *orders(60))
    served = serve(*ALL)
    enter(browser, served)
    to_all_letters(browser)
    browser.fill('input[name="rate"]', "10")
    browser.press("Send back")
    browser.press("Send back: 60 letters")
    cancel = browser.button("Cancel")
    browser.until(lambda: 0 < 60 - remaining(url) < 60, "some letters")
    shown = browser.one(".count").text
    browser.until(lambda: browser.one(".count").text != shown, "a later count")
    browser.leave(cancel.click)  # the same button: a press is not lost while the page renews its figures
    browser.until(lambda: "cancelled" in browser.text, "its end")
    browser.press("Resume")
    browser.until(lambda: "running" in browser.text, "its start")
    served.kill()
    left = remaining(url)
    assert 0 < left < 60
    again = serve(*ALL)
    enter(browser, again)
    browser.leave(browser.one(".card h2 a").click)
    browser.follow("Show it")
    assert "interrupted" in browser.text
    browser.press("Resume")
    browser.until(lambda: "60 of 60 sent" in browser.text or "done" in browser.text, "its end")
    browser.until(lambda: remaining(url) == 0, "all letters")


def test_an_edit_with_its_diff_and_a_parked_letter(browser: Screen, serve: Serve, url: str, picture: Picture) -> None:
    bury(url, Message(id="flight-7", value=b'{"airport": "XXX", "fare": 120.50}', key=b"k"), *orders(2))
    enter(browser, serve(*ALL, places=["orders"], named=NAMED))
    to_all_letters(browser)
    browser.follow("flight-7")
    browser.follow("Edit")
    browser.fill("#body", '{"airport": "HAM", "fare": 120.50}')
    browser.press("Show what changes")
    browser.reads("1 letter would be sent")
    assert "XXX" in browser.one(".diff .gone").text
    assert "HAM" in browser.one(".diff .add").text
    picture("edit", browser)
    browser.press("Edit and send back: 1 letter")
    browser.reads("1 of 1 sent")
    browser.until(lambda: remaining(url) == 2, "the original is removed")
    browser.follow("redelivery")
    settle(browser)
    to_all_letters(browser)
    browser.follow("o-0")
    browser.fill('input[name="note"]', "ask Bo")
    browser.press("Park this letter")
    browser.follow("letters like this")
    assert "parked" in browser.one("tbody").text


def test_pictures_of_what_is_read(browser: Screen, serve: Serve, tmp_path: Path, url: str, picture: Picture) -> None:
    second = f"sqlite:{tmp_path}/q.db?queue=payments"
    named = {**NAMED, "payments": "sqlite:q.db?queue=payments"}
    bury(url, *orders(7))
    bury(second, *(Message(id=f"p-{at}", value=b'{"payment": %d}' % at) for at in range(2)))
    served = serve(*ALL, places=["orders", "payments"], named=named)
    enter(browser, served)
    assert len(browser.all(".card")) == 2
    picture("places", browser)
    browser.leave(browser.one(".card h2 a").click)
    settle(browser)
    browser.leave(browser.one("table.list a.item").click)
    picture("group", browser)
    browser.leave(browser.one("table.list a.item").click)
    picture("letter", browser)
    assert "NO_AIRPORT" in browser.text
