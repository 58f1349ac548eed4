"""The page: what an operator sees, of whatever letters, from places that answer, that hang, and where looking takes."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path

import pytest
from ui_page import CONTEXT, Browser, Opened, bury

from redelivery.contract.broker import Support
from redelivery.contract.capabilities import Capabilities
from redelivery.contract.context import ErrorContext
from redelivery.contract.hooks import Decoder
from redelivery.contract.message import Message
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.errors import ConfigurationError
from redelivery.registry import Registry, installed
from redelivery.ui import page, views
from redelivery.ui.source import Source, slugs


def links(text: str, path: str) -> list[str]:
    """Return the links of a page to what is below a path."""
    return [unescape(each) for each in re.findall(rf'href="({re.escape(path)}[^"]*)"', text)]


def letters(browser: Browser, where: str = "") -> list[str]:
    """Return the links to the letters of the place `orders`."""
    return links(browser.get(f"/places/orders/letters{where}").text, "/places/orders/letters/")


def messages(count: int) -> list[Message]:
    return [Message(id=f"o-{number}", value=b'{"order": %d}' % number, key=b"k") for number in range(count)]


def test_all_places_then_a_group_then_a_letter(opened: Opened, url: str) -> None:
    bury(url, *messages(3))
    browser = opened()
    text = browser.settled("/")
    assert "<strong>3</strong> letters" in text
    assert "read-only" in text
    assert "<rect" in text
    place = browser.settled("/places/orders")
    group = links(place, "/places/orders/letters?where=group")[0]
    found = browser.get(group)
    assert found.status_code == 200
    (first, *others) = links(found.text, "/places/orders/letters/")
    assert len(others) == 2
    letter = browser.get(first).text
    assert "no such airport: &#39;größe&#39;" in letter
    assert "INVALID_MESSAGE" in letter
    assert "&#34;order&#34;: 0" in letter
    assert "7b 22" in browser.get(f"{first}?as=hex").text
    assert "<dt>hops</dt><dd>1</dd>" in letter


def test_a_filter_is_that_of_the_command_line_and_its_error_one_line(opened: Opened, url: str) -> None:
    bury(url, *messages(3))
    bury(url, Message(id="late", value=b"x"), context=replace(CONTEXT, kind="retriable"))
    browser = opened()
    browser.settled("/")
    assert len(letters(browser, "?where=kind=retriable")) == 1
    assert len(letters(browser, "?where=kind%3Dpermanent&where=id~o-[12]")) == 2
    assert "No letters match" in browser.get("/places/orders/letters?where=id=nothing").text
    wrong = browser.get("/places/orders/letters?where=knd=x")
    assert wrong.status_code == 400
    assert "did you mean &#39;kind&#39;?" in wrong.text
    wrong = browser.get("/places/orders/letters?where=reason~(%3F%3D<script>)")
    assert wrong.status_code == 400
    assert "not a regular expression of RE2" in wrong.text
    assert "<script>)" not in wrong.text
    assert browser.get("/places/orders/letters?" + "where=id=x&" * 60).status_code == 400


def test_letters_come_in_pages(opened: Opened, url: str) -> None:
    bury(url, *messages(120))
    browser = opened()
    browser.settled("/")
    first = browser.get("/places/orders/letters").text
    assert len(links(first, "/places/orders/letters/")) == 50
    assert "1 to 50" in first
    (onward,) = links(first, "/places/orders/letters?first=")
    last = browser.get(links(browser.get(onward).text, "/places/orders/letters?first=100")[0]).text
    assert "101 to 120 of 120" in last
    assert len(links(last, "/places/orders/letters/")) == 20
    for wild in ("-1", "x", "9" * 500, "1e9"):
        assert browser.get(f"/places/orders/letters?first={wild}").status_code == 200


def test_a_page_that_takes_too_long_says_so(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(url, *messages(3))
    browser = opened()
    browser.settled("/")
    text = browser.get("/places/orders/letters?seconds=0").text
    assert "Reading took longer than 0 s" in text
    assert links(text, "/places/orders/letters?seconds=60")


def test_a_link_to_a_letter_that_is_gone_or_replaced_says_so(opened: Opened, url: str) -> None:
    bury(url, *messages(2))
    browser = opened()
    browser.settled("/")
    first, second = letters(browser)
    other = f"{first.rsplit('/', 1)[0]}/{second.rsplit('/', 1)[1]}"
    gone = browser.get(other)
    assert gone.status_code == 404
    assert "Another letter is at this position now" in gone.text
    with dead_letters(url) as dlq:
        dlq.remove(["o-0"])
    assert "it was sent back or removed" in browser.get(first).text
    assert browser.get(first).status_code == 404
    for wild in ("%FF", "*", "AAAA%0A", "a" * 4000, "-"):
        assert browser.get(f"/places/orders/letters/{wild}/{'0' * 24}").status_code == 404, wild


EVIL = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\x00\u202e\u2066\n\"'&"
SHOWN = r"&lt;script&gt;alert(1)&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;\x1b[2J\x00\u202e\u2066"


def safe(text: str) -> None:
    """Check that nothing of a letter became markup, and that no character drives or reorders what is seen."""
    assert "<img" not in text
    assert "<script>" not in text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)


def test_hostile_letters_are_shown_as_text(opened: Opened, url: str) -> None:
    headers = ((EVIL, EVIL.encode()), ("a" * 10_000, b"\xff\xfe"), ('"><b>', None))
    context = ErrorContext(reason=EVIL, kind=EVIL, native_code=EVIL, exception=EVIL, stacktrace=EVIL, target=EVIL)
    extra = replace(context, extra={EVIL: EVIL})
    bury(url, Message(id=EVIL, key=EVIL.encode(), value=EVIL.encode(), headers=headers), context=extra)
    bury(url, Message(id="json", value=b'{"a": "\\u003cscript\\u003e\\u001b[2J\\u202e", "<b>": 1}'))
    bury(url, Message(id="binary", value=bytes(range(256))))
    browser = opened()
    safe(browser.settled("/"))
    place = browser.settled("/places/orders")
    safe(place)
    assert SHOWN[:40] in place
    for group in links(place, "/places/orders/letters?where=group"):
        safe(browser.get(group).text)
    safe(browser.get("/places/orders/letters").text)
    found = letters(browser)
    assert len(found) == 3
    for each in found:
        for form in ("", "?as=text", "?as=hex", "?as=json", "?as=%3Cscript%3E", f"?as={'x' * 5000}"):
            answer = browser.get(each + form)
            assert answer.status_code == 200
            safe(answer.text)
    text = browser.get(found[0]).text
    assert text.count(SHOWN) >= 5
    assert "&lt;script&gt;\\u001b[2J\\u202e&#34;" in browser.get(found[1]).text  # escaped in JSON, and no less here


@pytest.mark.parametrize(
    "path",
    [f"/places/{'%3Cscript%3E'}", "/places/orders/letters?where=%3Cscript%3Ealert(1)%3C/script%3E", "/%3Cscript%3E"],
)
def test_a_hostile_address_is_shown_as_text(opened: Opened, path: str) -> None:
    answer = opened().get(path)
    assert answer.status_code in {400, 404}
    safe(answer.text)


def test_a_body_of_five_megabytes_is_cut_and_says_so(opened: Opened, url: str) -> None:
    bury(url, Message(id="large", value=b'{"a": "' + b"<b>" * 1_700_000 + b'"}'))
    browser = opened()
    browser.settled("/")
    (letter,) = letters(browser)
    for form in ("text", "hex"):
        answer = browser.get(f"{letter}?as={form}")
        assert len(answer.content) < 3_000_000
        assert "5,100,009 bytes" in answer.text
        assert "This is the beginning only" in answer.text


def test_deep_json_is_text(opened: Opened, url: str) -> None:
    bury(url, Message(id="deep", value=b"[" * 100_000 + b"]" * 100_000))
    bury(url, Message(id="numbers", value=b'{"a": 12345678901234567890.123456789012345678901, "a": 1E400}'))
    browser = opened()
    browser.settled("/")
    deep, numbers = letters(browser)
    assert browser.get(deep).status_code == 200
    assert "12345678901234567890.123456789012345678901" in browser.get(numbers).text
    assert "1E400" in browser.get(numbers).text


def test_json_that_is_a_hundred_times_as_long_when_it_is_laid_out_is_text(opened: Opened, url: str) -> None:
    bury(url, Message(id="deep", value=b"[" * 99 + b",".join([b"1"] * 120_000) + b"]" * 99))
    browser = opened()
    browser.settled("/")
    (letter,) = letters(browser)
    assert len(browser.get(letter).content) < 1_000_000


def test_a_null_body_and_an_empty_one_are_told_apart(opened: Opened, url: str) -> None:
    bury(url, Message(id="null", value=None), Message(id="empty", value=b""))
    browser = opened()
    browser.settled("/")
    null, empty = letters(browser)
    assert "(null)" in browser.get(null).text
    assert "(null)" not in browser.get(empty).text


def test_masks_hide_in_bodies_headers_keys_reasons_and_whatever_form(opened: Opened, url: str) -> None:
    card = "4111111111111111"
    escaped = "".join(f"\\u{ord(each):04x}" for each in card)
    context = replace(CONTEXT, reason=f"card {card} refused", stacktrace=card, extra={"card": card})
    headers = ((f"card-{card}", card.encode()), ("binary", b"\xff" + card.encode()))
    body = f'{{"card": "{escaped}", "é": "{card}"}}'.encode()
    bury(url, Message(id=card, key=card.encode(), value=body, headers=headers), context=context)
    bury(url, Message(id="binary", value=b"\xff\xfe" + card.encode()), context=context)
    browser = opened(masks=["[0-9]{16}"])
    texts = [browser.settled("/"), browser.settled("/places/orders"), browser.get("/places/orders/letters").text]
    for each in letters(browser):
        texts += [browser.get(f"{each}?as={form}").text for form in ("json", "text", "hex")]
    hexadecimal = card.encode().hex(" ")
    for text in texts:
        assert card not in text
        assert hexadecimal not in text
    assert "card *** refused" in texts[3]
    assert "&#34;é&#34;: &#34;***&#34;" in texts[3]


def test_a_mask_hides_what_is_cut_at_the_end_too(opened: Opened, url: str) -> None:
    card = b"4111111111111111"
    headers = (("long", b"x" * 4090 + card), ("binary", b"\xff" * 4090 + card))
    context = replace(CONTEXT, reason="x " * 146 + card.decode() + " y" * 100)
    bury(url, Message(id="one", value=b"-" * (256 * 1024 - 8) + card * 100, headers=headers), context=context)
    bury(url, Message(id="two", value=b"\xff" * (16 * 1024 - 8) + card * 100))
    browser = opened(masks=["[0-9]{16}"])
    texts = [browser.settled("/places/orders"), browser.get("/places/orders/letters").text]
    for each in letters(browser):
        texts += [browser.get(f"{each}?as={form}").text for form in ("text", "hex")]
    for text in texts:
        assert "41111" not in text
        assert card[:5].hex(" ") not in text


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "a*", "", "\ud800"])
def test_a_mask_that_hides_nothing_or_everything_is_refused(opened: Opened, pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="--mask"):
        opened(masks=[pattern])


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Message], str | None]], None]:
    """Return a function that installs a decoder."""

    def install(decode: Callable[[Message], str | None]) -> None:
        known = installed()
        found = Registry(known.plugins, known.schemes, (), known.dialects, {"own": Decoder(name="own", decode=decode)})
        monkeypatch.setattr(views.registry, "installed", lambda: found)

    return install


Install = Callable[[Callable[[Message], "str | None"]], None]


def test_a_plugins_decoder_shows_a_body(opened: Opened, url: str, decoding: Install) -> None:
    bury(url, Message(id="one", value=b"\xff<b>"))
    decoding(lambda message: f"<i>{message.value!r}\x1b</i>")
    browser = opened()
    browser.settled("/")
    (letter,) = letters(browser)
    assert links(browser.get(letter).text, f"{letter}?as=own")
    text = browser.get(f"{letter}?as=own").text
    assert r"&lt;i&gt;b&#39;\xff&lt;b&gt;&#39;\x1b&lt;/i&gt;" in text
    safe(text)


def test_a_decoder_that_raises_hangs_or_tells_too_much_is_bounded(
    opened: Opened, url: str, decoding: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "_DECODING", 0.2)
    bury(url, Message(id="one", value=b"x"))
    browser = opened()
    browser.settled("/")
    (letter,) = letters(browser)
    decoding(lambda _: 1 // 0)  # type: ignore[arg-type,return-value]
    assert "own cannot decode it: ZeroDivisionError" in browser.get(f"{letter}?as=own").text
    decoding(lambda _: None)
    assert "the body is not in this form" in browser.get(f"{letter}?as=own").text
    decoding(lambda _: "x" * 5_000_000)
    assert len(browser.get(f"{letter}?as=own").text) < 400_000
    stop = threading.Event()
    decoding(lambda _: str(stop.wait(30)))
    assert "has not answered within 0.2 s" in browser.get(f"{letter}?as=own").text
    stop.set()


class Hanging(Source):
    """A place that never answers."""

    free = threading.Event()

    def open(self) -> DeadLetterQueue:
        """Wait, as a client does for a host that drops packets."""
        self.free.wait(60)
        raise ConfigurationError("never")


def test_a_place_that_hangs_leaves_the_others_alone(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(url, *messages(2))
    monkeypatch.setattr(views, "PATIENCE", 0.3)
    monkeypatch.setattr("redelivery.ui.background._TURN", 0.5)
    Hanging.free.clear()
    hanging = [Hanging(slug=name, name=name, url=url) for name in ("hangs", "b", "c", "d", "e", "f")]
    browser = opened(*hanging, Source(slug="orders", name="orders", url=url))
    began = time.monotonic()
    while "<strong>2</strong> letters" not in (text := browser.get("/").text):
        assert time.monotonic() - began < 20
    assert "counting… 0" in text
    assert len(letters(browser)) == 2
    slow = browser.get("/places/hangs/letters/Mg/0")
    assert slow.status_code == 504
    assert "hangs has not answered within 0.3 s" in slow.text
    Hanging.free.set()


def test_a_place_that_cannot_be_opened_shows_one_line(opened: Opened, url: str, tmp_path: Path) -> None:
    bury(url, *messages(1))
    bad = Source(slug="bad", name="bad", url="nosuch:<script>")
    missing = Source(slug="missing", name="missing", url=f"sqlite:{tmp_path}/none.db?queue=q")
    browser = opened(bad, missing, Source(slug="orders", name="orders", url=url))
    text = browser.settled("/")
    assert "no plugin opens &#39;nosuch&#39; URLs" in text
    assert "there is no such file" in text
    assert "<strong>1</strong> letter" in text
    assert "Traceback" not in text
    safe(text)
    answer = browser.get("/places/missing/letters")
    assert answer.status_code == 502
    assert "there is no such file" in answer.text


def test_no_secret_of_a_url_or_an_option_is_shown(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_SECRET", "hunter2hunter2")
    source = Source(
        slug="q",
        name="q",
        url="sqlite:/nowhere/q.db?queue=q&password=hunter2hunter2",
        options={"sqlite.x": "env:PAGE_SECRET"},
    )
    browser = opened(source)
    assert "hunter2" not in browser.settled("/") + browser.get("/places/q").text + browser.get("/places/q/letters").text


@dataclass(frozen=True, kw_only=True)
class Taking(Source):
    """A place where looking takes letters, as a broker without another way has it."""

    looks: list[int] = field(default_factory=list)

    def capabilities(self) -> Capabilities:
        """Say that it takes."""
        return replace(Source.capabilities(self), browse=Support.EMULATED, splits=Support.NONE)

    def open(self) -> DeadLetterQueue:
        """Count the looks."""
        dlq = Source.open(self)
        dlq._broker.capabilities = replace(dlq._broker.capabilities, browse=Support.EMULATED, splits=Support.NONE)
        browse = dlq._letters.browse

        def counted() -> Iterator[object]:
            self.looks.append(1)
            yield from browse()

        dlq._letters.browse = counted  # type: ignore[method-assign,assignment]
        return dlq


def test_where_looking_takes_nobody_looks_unasked(opened: Opened, url: str) -> None:
    bury(url, *messages(3))
    place = Taking(slug="orders", name="orders", url=url)
    browser = opened(place)
    text = browser.settled("/")
    assert "<strong>3</strong> letters, as the broker counts" in text
    assert "Not looked at: looking at letters here hides them" in text
    for path in ("/places/orders", "/places/orders/letters", "/places/orders/letters/Mg/0", "/places/orders/card"):
        assert "Not looked at" in browser.get(path).text, path
    assert place.looks == []
    assert browser.submit("/places/orders/look").status_code == 303
    assert "<strong>3</strong> letters" in browser.settled("/places/orders")
    assert len(place.looks) == 1
    found = letters(browser)
    assert len(found) == 3
    assert len(letters(browser, "?where=id=o-1")) == 1
    assert "&#34;order&#34;: 2" in browser.get(found[2]).text
    kept = browser.get("/places/orders/letters").text
    assert "These were kept by the look" in kept
    assert len(place.looks) == 1  # all of it from what was kept


class Elsewhere(Taking):
    """A place with positions that anyone may have named, as files are."""

    def open(self) -> DeadLetterQueue:
        """Give each letter one of these positions."""
        dlq = Taking.open(self)
        browse = dlq._letters.browse

        def named() -> Iterator[object]:
            for position, letter in zip(POSITIONS, browse(), strict=True):
                yield replace(letter, position=position)

        dlq._letters.browse = named  # type: ignore[method-assign,assignment]
        return dlq


POSITIONS = [EVIL, "", " ", "../../etc/passwd", "\ud800", "a" * 3000, "?#&%2F", "é"]


def test_a_hostile_position_is_a_position_like_any_other(opened: Opened, url: str) -> None:
    bury(url, *(Message(id=None, value=b"%d" % number) for number in range(len(POSITIONS))))
    browser = opened(Elsewhere(slug="orders", name="orders", url=url))
    browser.settled("/")
    browser.submit("/places/orders/look")
    safe(browser.settled("/places/orders"))
    found = letters(browser)
    assert len(found) == len(POSITIONS)
    for number, each in enumerate(found):
        answer = browser.get(each)
        assert answer.status_code == 200, POSITIONS[number]
        assert f'<pre class="body" tabindex="0">{number}</pre>' in answer.text
        safe(answer.text)


def test_what_is_kept_where_looking_takes_is_bounded(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(url, *messages(5))
    monkeypatch.setattr("redelivery.ui.reading.HELD_LETTERS", 2)
    browser = opened(Taking(slug="orders", name="orders", url=url))
    browser.settled("/")
    browser.submit("/places/orders/look")
    assert "the oldest 2 of them; more are there" in browser.settled("/")


def test_parked_letters_and_groups_are_shown_as_parked(opened: Opened, url: str) -> None:
    bury(url, *messages(2))
    bury(url, Message(id="other", value=b"x"), context=replace(CONTEXT, reason="out of stock"))
    browser = opened(Source(slug="orders", name="orders", url=url), Taking(slug="taking", name="taking", url=url))
    browser.settled("/")
    browser.submit("/places/taking/look")
    fingerprint = links(browser.settled("/places/orders"), "/places/orders/letters?where=group")[0].partition("%3D")[2]
    with dead_letters(url) as dlq:
        dlq.triage.park("group", [fingerprint], "waiting")
    browser.submit("/places/orders/look")
    place = browser.settled("/places/orders")
    assert "2 parked" in place
    for slug in ("orders", "taking"):
        text = browser.get(f"/places/{slug}/letters").text
        assert text.count('<span class="tag">parked</span>') == 2
        assert (
            len(links(browser.get(f"/places/{slug}/letters?where=parked=false").text, f"/places/{slug}/letters/")) == 1
        )


def test_drift_is_shown_where_a_spec_is_known(opened: Opened, url: str, tmp_path: Path) -> None:
    bury(url, *messages(1))
    spec = tmp_path / "orders.yaml"
    spec.write_text("deadLetterSink:\n  uri: native\nretry: 3\n")
    broken = tmp_path / "broken.yaml"
    sources = [Source(slug=name, name=name, url=url, spec=path) for name, path in (("a", spec), ("b", broken))]
    text = opened(*sources).settled("/")
    assert re.search(r"differences from orders.yaml|as orders.yaml wants it", text)
    assert "The spec cannot be compared: spec" in text
    assert "No such file or directory" in text


def test_a_place_is_looked_at_again_on_request(opened: Opened, url: str) -> None:
    bury(url, *messages(1))
    browser = opened()
    assert "<strong>1</strong> letter" in browser.settled("/")
    bury(url, Message(id="new", value=b"x"))
    assert "<strong>1</strong> letter" in browser.settled("/")
    browser.submit("/places/orders/look")
    assert "<strong>2</strong> letters" in browser.settled("/")


def test_the_names_of_places_in_urls_differ_and_are_plain() -> None:
    assert slugs(["orders", "orders", "sqlite:/a b?queue=x", "", "..", "<script>"]) == [
        "orders",
        "orders-2",
        "sqlite-a-b-queue-x",
        "place",
        "place-2",
        "script",
    ]
    assert len(slugs(["x" * 500])[0]) == 60


def test_an_operation_that_was_not_allowed_is_refused(opened: Opened, url: str) -> None:
    browser = opened()
    answer = browser.portal.call(  # type: ignore[union-attr]
        browser.page.action("redrive", views._places), None
    )
    assert answer.status_code == 403
    with pytest.raises(ConfigurationError, match="known are redrive, edit, park, purge"):
        opened(allow=frozenset({"remove"}))
    assert page.PERMISSIONS == ("redrive", "edit", "park", "purge")
