"""Operations of the page: counted, confirmed once, carried out once, cancelled, resumed; edit, triage, export."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from ui_page import CONTEXT, Browser, Opened, bury

from redelivery.contract.message import Message
from redelivery.deadletters.audit import AuditLog
from redelivery.deadletters.journal import Journal, default_path
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.selection import Selection
from redelivery.errors import JournalError
from redelivery.registry import connect
from redelivery.ui import exporting, jobs, operations, orders
from redelivery.ui.exporting import Export
from redelivery.ui.showing import Mask
from redelivery.ui.source import Source

ALL = frozenset({"redrive", "edit", "park", "purge"})


def messages(count: int, first: int = 0) -> list[Message]:
    return [Message(id=f"o-{number}", value=b'{"order": %d}' % number, key=b"k") for number in range(first, count)]


def arrived(url: str) -> list[Message]:
    """Return the messages that wait at a destination, and take them."""
    found: list[Message] = []
    with connect(url) as broker, broker.receiver() as receiver:
        while got := receiver.receive(100, wait=0.2):
            found += [each.message for each in got]
    return found


def left(url: str) -> list[str | None]:
    with dead_letters(url) as dlq:
        return [each.message.id for each in dlq]


def planned(browser: Browser, action: str, **form: Any) -> str:
    """Return the path of a plan, once its letters are counted."""
    answer = browser.submit(f"/places/orders/plan/{action}", form)
    assert answer.status_code == 303, answer.text
    path: str = answer.headers["location"]
    browser.settled(path)
    return path


def confirm(browser: Browser, path: str, count: int, **form: str) -> Any:
    return browser.submit(f"{path}/confirm", {"count": str(count), **form})


def done(browser: Browser) -> str:
    return browser.settled("/places/orders/operation")


def picks(browser: Browser, where: str = "") -> list[str]:
    browser.settled("/")
    return re.findall(r'name="pick" value="([^"]+)"', browser.get(f"/places/orders/letters{where}").text)


def letters(browser: Browser) -> list[str]:
    browser.settled("/")
    return re.findall(r'href="(/places/orders/letters/[^"?]+)"', browser.get("/places/orders/letters").text)


def test_a_redrive_is_counted_then_confirmed_then_done(opened: Opened, url: str) -> None:
    bury(url, *messages(3))
    bury(url, Message(id="late", value=b"x"), context=replace(CONTEXT, kind="retriable"))
    browser = opened(allow=frozenset({"redrive"}))
    path = planned(browser, "redrive", where="kind=permanent")
    text = browser.get(path).text
    assert "<strong>3</strong> letters would be sent" in text
    assert "where they failed: sqlite:" in text
    assert len(left(url)) == 4
    answer = confirm(browser, path, 3)
    assert answer.headers["location"] == "/places/orders/operation"
    text = done(browser)
    assert "<strong>3</strong> of 3 sent" in text
    assert ">done<" in text
    assert "limit" not in text  # nobody has set one
    assert left(url) == ["late"]
    assert [str(each.id).partition("~")[0] for each in arrived(url)] == ["o-0", "o-1", "o-2"]
    history = browser.get("/places/orders/history").text
    assert "kind=permanent, 3 confirmed" in history
    assert "redriven: 3" in history


def test_nothing_is_offered_or_done_that_was_not_allowed(opened: Opened, url: str) -> None:
    bury(url, *messages(1))
    browser = opened()
    browser.settled("/")
    (pick,) = picks(browser)
    for action in ("redrive", "edit", "remove", "purge"):
        assert browser.submit(f"/places/orders/plan/{action}", {"pick": pick}).status_code == 403
        assert f"/plan/{action}" not in browser.get("/places/orders/letters").text
    assert browser.submit("/places/orders/triage", {"action": "park", "pick": pick}).status_code == 403
    assert left(url) == ["o-0"]


def test_a_plan_that_needs_more_than_is_allowed_now_is_not_confirmed(opened: Opened, url: str) -> None:
    bury(url, *messages(1))
    browser = opened(allow=ALL)
    path = planned(browser, "redrive")
    object.__setattr__(browser.page.settings, "allow", frozenset({"park"}))
    assert confirm(browser, path, 1).status_code == 404
    assert left(url) == ["o-0"]


def test_two_who_confirm_at_once_and_a_double_click_are_one_operation(opened: Opened, url: str) -> None:
    bury(url, *messages(4))
    browser = opened(allow=ALL)
    path = planned(browser, "redrive")
    start = threading.Barrier(4)
    answers: list[Any] = []

    def press() -> None:
        start.wait()
        answers.append(confirm(browser, path, 4))

    threads = [threading.Thread(target=press) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {each.status_code for each in answers} == {303}
    done(browser)
    assert [str(each.id).partition("~")[0] for each in arrived(url)] == ["o-0", "o-1", "o-2", "o-3"]
    assert [each.outcome for each in AuditLog().entries() if each.action == "redrive"] == ["done", "began"]
    assert confirm(browser, path, 4).status_code == 303  # much later: it was used
    assert len([each for each in AuditLog().entries() if each.action == "redrive"]) == 2


class Slow:
    """Lets a redrive send one letter at a time, each when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began = threading.Event()
        self.go = threading.Event()
        real = DeadLetterQueue.redrive

        def redrive(dlq: DeadLetterQueue, *arguments: Any, **given: Any) -> Any:
            settings = given["settings"]
            if not settings.dry_run:
                told = settings.on_progress

                def show(report: Any) -> None:
                    told(report)
                    self.began.set()
                    assert self.go.wait(5)

                given["settings"] = replace(settings, on_progress=show)
                monkeypatch.setattr("redelivery.deadletters.redrive._CHUNK", 1)
            return real(dlq, *arguments, **given)

        monkeypatch.setattr(DeadLetterQueue, "redrive", redrive)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def test_one_operation_a_place(opened: Opened, url: str, slow: Slow) -> None:
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    first, second = planned(browser, "redrive", limit="1"), planned(browser, "redrive")
    assert confirm(browser, first, 1).status_code == 303
    assert slow.began.wait(5)
    refused = confirm(browser, second, 3)
    assert refused.status_code == 409
    assert "an operation goes on already" in refused.text
    other = opened(allow=ALL)  # another page of the same place
    assert "It runs in another process" in other.get("/places/orders/operation").text
    assert confirm(other, planned(other, "redrive"), 3).status_code == 409
    slow.go.set()
    done(browser)
    path = planned(browser, "redrive")
    assert confirm(browser, path, 2).status_code == 303
    done(browser)
    assert left(url) == []


def test_a_redrive_of_the_command_line_is_waited_for(opened: Opened, url: str) -> None:
    bury(url, *messages(1))
    browser = opened(allow=ALL)
    path = planned(browser, "redrive")
    with dead_letters(url) as dlq:
        place = dlq.place
    with Journal(default_path(place), place):
        assert confirm(browser, path, 1).status_code == 303
        assert "another redrive of this place is running" in done(browser)
    assert left(url) == ["o-0"]
    operation = re.findall(r'name="operation" value="(\w+)"', done(browser))[0]
    assert browser.submit("/places/orders/operation/resume", {"operation": operation}).status_code == 303
    assert ">done<" in done(browser)
    assert left(url) == []


def test_letters_that_came_after_the_count_stay(opened: Opened, url: str) -> None:
    """Also where as many letters have gone since as came: only what was counted is sent or removed."""
    bury(url, *messages(4))
    browser = opened(allow=ALL)
    sending, removing = planned(browser, "redrive", where="id~o-"), planned(browser, "remove", where="id~o-")
    assert "Only these letters go" in browser.get(sending).text
    with dead_letters(url) as dlq:
        dlq.remove_at([each.position for each in dlq][:1], made=dlq.made())
    bury(url, *messages(6, first=4))
    limited = planned(browser, "remove", where="id~o-", limit="1")
    confirm(browser, limited, 1, typed="orders")
    done(browser)
    assert left(url) == ["o-2", "o-3", "o-4", "o-5"]
    assert confirm(browser, sending, 4).status_code == 303
    text = done(browser)
    assert "<strong>2</strong> of 4 sent" in text
    assert "2 of the letters that were confirmed were gone" in text
    assert left(url) == ["o-4", "o-5"]
    confirm(browser, removing, 4, typed="orders")
    assert "<strong>0</strong> of 4 removed" in done(browser)
    assert left(url) == ["o-4", "o-5"]


def test_what_was_confirmed_is_known_after_a_kill_too(opened: Opened, url: str, slow: Slow) -> None:
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    confirm(browser, planned(browser, "redrive", rate="1000"), 3)
    assert slow.began.wait(5)
    browser.page.shelves["orders"].job.cancel()
    slow.go.set()
    done(browser)
    remaining = left(url)
    assert 0 < len(remaining) < 3
    bury(url, *messages(9, first=3))
    again = opened(allow=ALL)
    state = again.page.shelves["orders"].job.state
    assert state is not None
    again.submit("/places/orders/operation/resume", {"operation": state.name})
    assert ">done<" in done(again)
    assert left(url) == [f"o-{number}" for number in range(3, 9)]


def test_more_letters_than_were_confirmed_are_not_sent(
    opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many letters are not told apart: their number is compared."""
    monkeypatch.setattr(orders, "TOLD_APART", 1)
    bury(url, *messages(2))
    browser = opened(allow=ALL)
    path = planned(browser, "redrive")
    assert "too many to tell them apart" in browser.get(path).text
    bury(url, *messages(4, first=2))
    assert confirm(browser, path, 3).status_code == 409  # not what was counted
    assert confirm(browser, path, 2).status_code == 303
    text = done(browser)
    assert "2 letters were confirmed, and now there are 4: nothing was done" in text
    assert len(left(url)) == 4
    assert arrived(url) == []


def test_a_chosen_letter_goes_alone_and_another_one_at_its_position_does_not(opened: Opened, url: str) -> None:
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    chosen = picks(browser)
    path = planned(browser, "redrive", pick=chosen[1:])
    confirm(browser, path, 2)
    done(browser)
    assert left(url) == ["o-0"]
    wrong = f"{chosen[0].partition('.')[0]}.{'0' * 16}"
    assert "<strong>0</strong> letters would be sent" in browser.get(planned(browser, "redrive", pick=wrong)).text


def test_it_is_cancelled_and_resumed(opened: Opened, url: str, slow: Slow) -> None:
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    confirm(browser, planned(browser, "redrive", rate="1000"), 3)
    assert slow.began.wait(5)
    operation = re.findall(r'name="operation" value="(\w+)"', browser.get("/places/orders/operation").text)[0]
    browser.submit("/places/orders/operation/cancel", {"operation": "another"})
    assert not browser.page.shelves["orders"].job._stop.is_set()
    browser.submit("/places/orders/operation/cancel", {"operation": operation})
    slow.go.set()
    text = done(browser)
    assert ">cancelled<" in text
    sent = 3 - len(left(url))
    assert 0 < sent < 3
    browser.submit("/places/orders/operation/resume", {"operation": operation})
    text = done(browser)
    assert ">done<" in text
    assert "<strong>3</strong> of 3 sent" in text
    assert sorted(str(each.id).partition("~")[0] for each in arrived(url)) == ["o-0", "o-1", "o-2"]


def test_after_a_kill_it_says_interrupted_and_goes_on(opened: Opened, url: str) -> None:
    bury(url, *messages(2))
    browser = opened(allow=ALL)
    confirm(browser, planned(browser, "redrive"), 2)
    done(browser)
    arrived(url)
    bury(url, *messages(5, first=2))
    job = browser.page.shelves["orders"].job
    state, path = job.state, job._path()
    assert state is not None
    assert path is not None
    said = {**asdict(state), "marks": "", "phase": "running", "count": 5, "ended_ms": None, "report": {"redriven": 1}}
    path.write_text(json.dumps(said), encoding="utf-8")  # as a killed page leaves it: the journal knows more
    again = opened(allow=ALL)
    text = again.get("/places/orders/operation").text
    assert ">interrupted<" in text
    assert "at least <strong>1</strong> of 5" in text
    assert "An operation here has not ended" in again.get("/places/orders").text
    again.submit("/places/orders/operation/resume", {"operation": state.name})
    text = done(again)
    assert ">done<" in text
    assert "<strong>5</strong> of 5 sent" in text
    assert left(url) == []
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"order": 1}', '{"order": {"action": "rm"}}', "null"])
def test_a_damaged_state_says_nothing(opened: Opened, url: str, text: str) -> None:
    bury(url, *messages(1))
    browser = opened(allow=ALL)
    path = browser.page.shelves["orders"].job._path()
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    assert "Nothing was done here" in browser.get("/places/orders/operation").text


def test_a_page_that_ends_settles_and_can_resume(url: str, opened: Opened, slow: Slow) -> None:
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    confirm(browser, planned(browser, "redrive", rate="1000"), 3)
    assert slow.began.wait(5)
    job = browser.page.shelves["orders"].job
    threading.Timer(0.2, slow.go.set).start()
    job.leave()
    state = job.state
    assert state is not None
    assert state.phase == jobs.CANCELLED
    assert len(left(url)) + state.moved == 3


def test_an_edit_shows_its_diff_and_only_the_edited_one_is_sent(opened: Opened, url: str) -> None:
    body = b'{ "airport": "XXX",  "fare": 12345678901234567890.10, "kept": [1, 2] }'
    bury(url, Message(id="o-1", value=body, key=b"k"), *messages(3, first=2))
    browser = opened(allow=frozenset({"edit"}))
    letter = letters(browser)[0]
    form = browser.get(f"{letter}/edit").text
    assert "12345678901234567890.10" in form
    new = '{"airport": "HAM", "fare": 12345678901234567890.10, "kept": [1, 2, 3]}'
    answer = browser.submit(f"{letter}/edited", {"body": new, "set": "mended: by hand", "new_key": "1", "key": "n"})
    assert answer.status_code == 303, answer.text
    path = answer.headers["location"]
    text = browser.settled(path)
    assert re.search(r'class="gone">-.*XXX', text)
    assert re.search(r'class="add">\+.*HAM', text)
    assert "mended" in text
    assert "as many as you allow" not in text
    confirm(browser, path, 1)
    assert ">done<" in done(browser)
    (sent,) = arrived(url)
    assert sent.value == b'{ "airport": "HAM",  "fare": 12345678901234567890.10, "kept": [1, 2, 3] }'
    assert sent.key == b"n"
    assert dict(sent.headers)["mended"] == b"by hand"
    assert left(url) == ["o-2"]


@pytest.mark.parametrize("text", ["\u200d", "\xad", "\x7f", "\x85", "\U000e0001", "\ufffe"], ids=ascii)
def test_characters_that_show_nothing_survive_the_form(opened: Opened, url: str, text: str) -> None:
    bury(url, Message(id="o-1", value=f'{{"a": "x{text}", "b": 1}}'.encode()))
    browser = opened(allow=ALL)
    letter = letters(browser)[0]
    form = re.findall(r"<textarea id=\"body\"[^>]*>\n([^<]*)<", browser.get(f"{letter}/edit").text)[0]
    assert text not in form
    body = unescape(form).replace("\n", "\r\n")
    assert "nothing is changed" in browser.submit(f"{letter}/edited", {"body": body}).text
    answer = browser.submit(f"{letter}/edited", {"body": body.replace(": 1", ": 2")})
    browser.settled(answer.headers["location"])
    confirm(browser, answer.headers["location"], 1)
    assert ">done<" in done(browser)
    assert [each.value for each in arrived(url)] == [f'{{"a": "x{text}", "b": 2}}'.encode()]


def test_a_body_of_many_lines_is_not_compared(opened: Opened, url: str) -> None:
    many = json.dumps(list(range(100_000)))
    bury(url, Message(id="o-1", value=b'{"a": []}'), Message(id="o-2", value=many.encode()))
    browser = opened(allow=ALL)
    short, long = letters(browser)
    assert "too long to be edited here" in browser.get(f"{long}/edit").text
    answer = browser.submit(f"{short}/edited", {"body": many})
    assert answer.status_code == 400
    assert "too long to be compared here" in answer.text


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({}, "nothing is changed"),
        ({"body": "{"}, "the new body is not JSON"),
        ({"body": '{"a": 1, "a": 2}'}, "the new body is not JSON"),
        ({"set": "no colon"}, "write a line for each"),
        ({"set": "a: b", "unset": "a"}, "both set and unset"),
        ({"to": "elsewhere", "set": "a: b"}, "letters go to a place of this page"),
    ],
)
def test_a_wrong_edit_is_one_line(opened: Opened, url: str, form: dict[str, str], said: str) -> None:
    bury(url, *messages(1))
    browser = opened(allow=ALL)
    letter = letters(browser)[0]
    answer = browser.submit(f"{letter}/edited", form)
    assert answer.status_code == 400
    assert said in answer.text


def test_a_patch_edits_a_selection(opened: Opened, url: str) -> None:
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    patch = '{"body": [{"op": "add", "path": "/mended", "value": true}]}'
    path = planned(browser, "edit", where="id~o-[01]", patch=patch)
    assert browser.get(path).text.count('class="diff"') == 2
    confirm(browser, path, 2)
    done(browser)
    assert [each.value for each in arrived(url)] == [b'{"order": 0, "mended": true}', b'{"order": 1, "mended": true}']
    for wrong in ("", "{", "[]", '{"body": 1}'):
        assert browser.submit("/places/orders/plan/edit", {"patch": wrong}).status_code == 400


def test_a_masked_body_is_not_edited_and_not_exported(opened: Opened, url: str) -> None:
    bury(url, Message(id="o-1", value=b'{"card": "4111-1111"}', headers=(("card", b"4111-1111"),)))
    browser = opened(allow=ALL, masks=["4111-[0-9]+"])
    letter = letters(browser)[0]
    form = browser.get(f"{letter}/edit").text
    assert "masked, so it cannot be edited" in form
    exported = browser.submit("/places/orders/export").text
    path = browser.submit(f"{letter}/edited", {"set": "a: b"}).headers["location"]
    for text in (form, exported, browser.settled(path)):
        assert "4111" not in text
    assert json.loads(exported)["value"] == '{"card": "***"}'


def test_parked_letters_stay_until_they_are_unparked(opened: Opened, url: str) -> None:
    bury(url, *messages(2))
    browser = opened(allow=ALL, who="ada")
    first = picks(browser)[0]
    answer = browser.submit("/places/orders/triage", {"action": "park", "pick": first, "note": "<b>ask Bo</b>"})
    assert answer.status_code == 303
    text = browser.get(planned(browser, "redrive")).text
    assert "<strong>1</strong> letter would be sent" in text
    assert "parked" in text
    history = browser.get("/places/orders/history").text
    assert "&lt;b&gt;ask Bo" in history
    assert "ada" in history
    browser.submit("/places/orders/triage", {"action": "unpark", "pick": first})
    group = re.findall(r"group(?:%3D|=)(\w{12})", browser.settled("/places/orders"))[0]
    browser.submit("/places/orders/triage", {"action": "park", "group": group, "note": "all"})
    assert "<strong>0</strong> letters would be sent" in browser.get(planned(browser, "redrive")).text
    assert browser.submit("/places/orders/triage", {"action": "park", "group": "x"}).status_code == 400
    assert browser.submit("/places/orders/triage", {"action": "burn", "group": group}).status_code == 400
    assert browser.submit("/places/orders/triage", {"action": "note", "group": group}).status_code == 400


@pytest.mark.parametrize(("action", "gone"), [("remove", 2), ("purge", 3)])
def test_letters_are_removed_only_where_the_place_is_typed(opened: Opened, url: str, action: str, gone: int) -> None:
    bury(url, *messages(3))
    browser = opened(allow=frozenset({"purge"}))
    path = planned(browser, action, where="id~o-[01]")
    assert "removed for good" in browser.get(path).text
    for typed in ("", "order"):
        assert confirm(browser, path, gone, typed=typed).status_code == 400
    assert len(left(url)) == 3
    confirm(browser, path, gone, typed="orders")
    assert f"<strong>{gone}</strong> of {gone} removed" in done(browser)
    assert len(left(url)) == 3 - gone
    assert browser.submit("/places/orders/plan/remove").status_code == 400


def test_a_removal_says_where_it_ends(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "TOLD_APART", 1)
    for module in (jobs, operations):
        monkeypatch.setattr(module, "MOST_REMOVED", 2)
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    path = planned(browser, "remove", where="id~o-")
    assert "One operation removes at most 2" in browser.get(path).text
    confirm(browser, path, 3, typed="orders")
    text = done(browser)
    assert "<strong>2</strong> of 3 removed" in text
    assert "Count again to remove the other 1." in text
    assert left(url) == ["o-2"]


def test_letters_go_to_another_place_of_the_page_and_to_no_url(opened: Opened, url: str, tmp_path: Path) -> None:
    bury(url, *messages(1))
    other = f"sqlite:{tmp_path}/q.db?queue=second"
    places = (Source(slug="orders", name="orders", url=url), Source(slug="second", name="second", url=other))
    browser = opened(*places, allow=ALL)
    refused = browser.submit("/places/orders/plan/redrive", {"to": other})
    assert refused.status_code == 400
    typed = browser.submit("/places/orders/plan/edit", {"patch": '{"destination": "second"}'})
    assert typed.status_code == 400
    path = planned(browser, "redrive", to="second")
    assert "second: sqlite:" in browser.get(path).text
    confirm(browser, path, 1)
    done(browser)
    assert [str(each.id).partition("~")[0] for each in arrived(other)] == ["o-0"]
    assert arrived(url) == []


def test_an_export_is_json_lines_as_an_attachment(opened: Opened, url: str) -> None:
    bury(url, *messages(300), Message(id="binary", value=b"\xff\x00"))
    browser = opened()
    browser.settled("/")
    answer = browser.submit("/places/orders/export")
    assert answer.headers["content-disposition"] == 'attachment; filename="orders-letters.jsonl"'
    found = [json.loads(each) for each in answer.text.splitlines()]
    assert [each["id"] for each in found] == [*(f"o-{number}" for number in range(300)), "binary"]
    assert found[0]["error"]["native_code"] == "NO_AIRPORT"
    assert found[-1]["value_base64"] == "/wA="
    one = browser.submit("/places/orders/export", {"where": "id=o-7"}).text
    assert json.loads(one)["value"] == '{"order": 7}'
    assert browser.submit("/places/orders/export", {"where": "knd=x"}).status_code == 400
    assert [each.action for each in AuditLog().entries()] == ["export", "export"]


def test_an_export_of_a_place_that_hangs_begins_and_ends_with_the_page() -> None:
    hangs = threading.Event()
    export = Export(lambda _: hangs.wait(30), Selection(), Mask())

    async def use() -> None:
        assert await export.first(0.1) == b""
        rest = asyncio.ensure_future(export.first(30))
        await asyncio.sleep(0)
        rest.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rest

    began = time.monotonic()
    asyncio.run(use())  # it waits for its threads
    assert time.monotonic() - began < 10
    hangs.set()


def test_an_export_that_is_not_recorded_is_not_made(opened: Opened, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise JournalError("the audit log cannot be written")

    bury(url, *messages(3))
    browser = opened()
    browser.settled("/")
    monkeypatch.setattr(AuditLog, "record", full)
    monkeypatch.setattr(exporting, "_PIECE", 1)
    monkeypatch.setattr(exporting, "_WAITING", 1)
    assert browser.submit("/places/orders/export").status_code == 409
    ends = time.monotonic() + 10
    while any(each.name == "redelivery-export" for each in threading.enumerate()):
        assert time.monotonic() < ends
        time.sleep(0.02)  # it is a thread of its own


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "-1"}, "limit"),
        ({"limit": "1e9"}, "limit"),
        ({"rate": "0"}, "rate"),
        ({"rate": "nan"}, "rate"),
        ({"where": "knd=x"}, "did you mean"),
        ({"where": ["id=x"] * 51}, "at most 50 conditions"),
        ({"pick": "%.x"}, "not the address of a letter"),
    ],
)
def test_a_wrong_form_is_one_line(opened: Opened, url: str, form: dict[str, Any], said: str) -> None:
    bury(url, *messages(1))
    browser = opened(allow=ALL)
    answer = browser.submit("/places/orders/plan/redrive", form)
    assert answer.status_code in {400, 404}
    assert said in answer.text


def test_every_change_needs_the_forms_token_and_our_origin(opened: Opened, url: str) -> None:
    bury(url, *messages(1))
    browser = opened(allow=ALL)
    plan = planned(browser, "redrive")
    paths = [f"/places/orders/plan/{each}" for each in ("redrive", "edit", "remove", "purge")]
    paths += [f"{plan}/confirm", "/places/orders/operation/cancel", "/places/orders/operation/resume"]
    paths += ["/places/orders/triage", "/places/orders/export"]
    for path in paths:
        assert browser.submit(path, {"csrf": "forged"}).status_code == 403
        assert browser.submit(path, {"count": "1"}, origin="http://127.0.0.1:1").status_code == 403
        assert browser.get(path).status_code in {404, 405}
    assert left(url) == ["o-0"]


def test_plans_are_forgotten(opened: Opened, url: str) -> None:
    bury(url, *messages(1))
    browser = opened(allow=ALL)
    first = planned(browser, "redrive")
    for _ in range(20):
        browser.submit("/places/orders/plan/redrive")
    assert browser.get(first).status_code == 404
    assert confirm(browser, first, 1).status_code == 404


def test_a_redrive_goes_in_waves(opened: Opened, url: str) -> None:
    bury(url, *messages(3))
    browser = opened(allow=ALL)
    for wrong in ({"waves": "x"}, {"stop_at": "5"}, {"wave_wait": "PT1S"}, {"waves": "1", "stop_at": "0"}):
        assert browser.submit("/places/orders/plan/redrive", wrong).status_code == 400
    assert "waits 30.0 s, and stops where 2 % of" in browser.get(planned(browser, "redrive", waves="1")).text
    path = planned(browser, "redrive", waves="1,2", stop_at="5", wave_wait="PT0.1S")
    text = browser.get(path).text
    assert "<dd>1, 2; after each it waits 0.1 s, and stops where 5 of a wave" in text
    confirm(browser, path, 3)
    text = done(browser)
    assert ">done<" in text
    assert "<dt>wave</dt><dd>2;" in text
    assert left(url) == []
