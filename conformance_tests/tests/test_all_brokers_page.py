"""The page counts, confirms and sends back letters of every broker, also where looking takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ui_page import PORT, Browser

from redelivery.contract.broker import Support
from redelivery.formats import dialects
from redelivery.ui.app import application
from redelivery.ui.page import Settings
from redelivery.ui.source import Source
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import Subject
from redelivery_conformance.suite.letters import CONTEXT
from redelivery_conformance.suite.receiving import numbered

NEEDS = ("send", "browse", "remove", "dead_letter", "headers")
WAITS = 60.0


class TestPage(Statements):
    """`redelivery ui` over this broker's roles."""

    @pytest.fixture
    def browser(self, subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
        """A page of the place with four letters that somebody has looked at."""
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        subject.provision()
        has = subject.capabilities
        form: dict[str, Any] = {"dialect": has.context_dialect, "limits": has.limits}
        letters = [dialects.attach(each, CONTEXT, prefix=has.cloudevents_prefix, **form) for each in numbered(4)]
        subject.deliver(*letters, url=subject.broker.native_sink())
        source = Source(slug="orders", name="orders", url=subject.place.url, options=subject.place.options)
        app, page = application(Settings(sources=(source,), allow=frozenset({"redrive", "edit", "purge"})), PORT)
        with Browser(app, page) as browser:
            browser.begin()
            text = browser.settled("/", WAITS)
            if has.browse is not Support.NATIVE:
                assert "Not looked at" in text
                assert browser.submit("/places/orders/look").status_code == 303
            assert "<strong>4</strong> letters" in browser.settled("/", WAITS)
            yield browser

    @broker_has(*NEEDS)
    def test_letters_are_counted_confirmed_and_sent(self, subject: Subject, browser: Browser) -> None:
        path = _planned(browser, "redrive", 4)
        assert "<strong>4</strong> of 4 sent" in _confirmed(browser, path, 4)
        assert sorted(each.value or b"" for each in subject.place.stored()) == _values(4)
        assert not subject.browse(direct=False)

    @broker_has(*NEEDS)
    def test_a_letter_is_chosen_and_sent_alone(self, subject: Subject, browser: Browser) -> None:
        pick = _picks(browser)[1]
        path = _planned(browser, "redrive", 1, pick=pick)
        assert "<strong>1</strong> of 1 sent" in _confirmed(browser, path, 1)
        (sent,) = subject.place.stored()
        left = [each.message.value for each in subject.browse(direct=False)]
        assert sorted([sent.value or b"", *(each or b"" for each in left)]) == _values(4)

    @broker_has(*NEEDS)
    def test_letters_are_edited_on_their_way(self, subject: Subject, browser: Browser) -> None:
        path = _planned(browser, "edit", 4, patch='{"headers": {"set": {"mended": "yes"}}}')
        assert "<strong>4</strong> of 4 sent" in _confirmed(browser, path, 4)
        assert [dict(each.headers).get("mended") for each in subject.place.stored()] == [b"yes"] * 4

    @broker_has(*NEEDS)
    def test_a_letter_is_removed(self, subject: Subject, browser: Browser) -> None:
        path = _planned(browser, "remove", 1, pick=_picks(browser)[0])
        assert "<strong>1</strong> of 1 removed" in _confirmed(browser, path, 1, typed="orders")
        assert len(subject.browse(direct=False)) == 3


def _values(count: int) -> list[bytes]:
    return sorted(each.value or b"" for each in numbered(count))


def _picks(browser: Browser) -> list[str]:
    return re.findall(r'name="pick" value="([^"]+)"', browser.get("/places/orders/letters").text)


def _planned(browser: Browser, action: str, count: int, **form: str) -> str:
    """Return the path of a plan, once it counts so many letters."""
    answer = browser.submit(f"/places/orders/plan/{action}", form)
    assert answer.status_code == 303, answer.text
    path: str = answer.headers["location"]
    assert f"<strong>{count}</strong> letter" in browser.settled(path, WAITS), browser.get(path).text
    return path


def _confirmed(browser: Browser, path: str, count: int, **form: str) -> str:
    """Return what the page says of an operation once it has ended."""
    answer = browser.submit(f"{path}/confirm", {"count": str(count), **form})
    assert answer.status_code == 303, answer.text
    text = browser.settled("/places/orders/operation", WAITS)
    assert ">done<" in text, text
    return text
