"""Letters that are edited and sent back: exactly one of both is sent, and what does not fit stays."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_deadletters import CONTEXT, DeadLetterSetup

from redelivery.contract.broker import Letter, Limits, Support
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.patching import Patch, diff, masking
from redelivery.deadletters.redrive import RedriveSettings
from redelivery.errors import ConfigurationError, Retriable
from redelivery.formats import dialects, events

AMOUNT = Patch.read({"body": [{"op": "replace", "path": "/amount", "value": 2}]})
OTHER = Patch.read({"body": [{"op": "replace", "path": "/amount", "value": 3}]})


def letter(name: str, value: bytes | None = b'{"amount": 1}', context: ErrorContext = CONTEXT, **more: Any) -> Letter:
    message = Message(value=value, id=name, **{"key": b"k", "headers": (("mine", b"1"),), **more})
    stored = dialects.attach(message, context, dialect="json", limits=Limits(), prefix="ce-")
    return Letter(position=f"p-{name}", message=stored)


def test_a_letter_is_edited_and_goes_back_without_the_context_of_its_failure() -> None:
    here = DeadLetterSetup(letter("a", b'{"big": 12345678901234567890.10, "amount" : 1,"x":1.0}'))
    patch = Patch.read(
        {
            "body": [{"op": "replace", "path": "/amount", "value": 2}],
            "headers": {"set": {"mine": "2", "new": {"base64": "AP8="}}, "unset": ["absent"]},
            "key": "other",
        }
    )
    with here.dlq() as dlq:
        report = dlq.redrive(patch=patch)
    (back,) = here.work.stored
    assert (report.redriven, report.removed) == (1, 1)
    assert back.value == b'{"big": 12345678901234567890.10, "amount" : 2,"x":1.0}'
    assert (back.key, back.id, back.headers[0]) == (b"other", "a~1", ("mine", b"2"))
    assert ("new", b"\0\xff") in back.headers
    assert dialects.read(back) is None
    assert dialects.history(back) == dialects.DeliveryHistory(attempts_total=3, hops=1)
    assert not here.place.letters


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"not JSON", "is not JSON"),
        (None, "is not JSON"),
        (b"\xff", "is not JSON"),
        (b'{"amount": 1, "amount": 2}', "each name once"),
        (b"[" * 5_000, "is not JSON"),
        (b'{"other": 1}', r"operation 1 \(test /amount\) is not true of it"),
        (b'{"amount": 2}', r"operation 1 \(test /amount\) is not true of it"),
        (b'{"amount": 1, "list": 1}', r"operation 2 \(add /list/-\) cannot be applied"),
    ],
)
def test_a_letter_that_the_patch_does_not_fit_stays_and_the_others_go(value: bytes | None, why: str) -> None:
    patch = Patch.read(
        {"body": [{"op": "test", "path": "/amount", "value": 1}, {"op": "add", "path": "/list/-", "value": "x"}]}
    )
    here = DeadLetterSetup(letter("a", value), letter("b", b'{"amount": 1.0, "list": []}'))
    with here.dlq() as dlq:
        report = dlq.redrive(patch=patch)
    assert (report.considered, report.selected, report.redriven, report.failed) == (2, 1, 1, 0)
    ((reason, count),) = report.left.items()
    assert count == 1
    assert re.search(why, reason), reason
    assert [message.value for message in here.work.stored] == [b'{"amount": 1.0, "list": ["x"]}']
    assert [each.position for each in here.place.letters] == ["p-a"]


def test_a_destination_of_the_patch_is_the_operators_word_and_no_header_is_followed() -> None:
    here = DeadLetterSetup(letter("a", context=replace(CONTEXT, target="victim")))
    with here.dlq() as dlq:
        object.__setattr__(here.work.capabilities, "destinations", Support.NATIVE)
        assert dlq.redrive(patch=AMOUNT).redriven == 0, "a header alone chooses no target"
        report = dlq.redrive(patch=Patch.read({"destination": "orders-eu"}))
    assert report.targets == {"orders-eu": 1}
    assert [message.destination for message in here.work.stored] == ["orders-eu"]


def test_a_destination_where_no_message_has_one_and_the_place_itself_are_refused() -> None:
    here = DeadLetterSetup(letter("a"))
    with here.dlq() as dlq:
        place = dlq._places()[0]
        object.__setattr__(here.work.capabilities, "destinations", Support.NATIVE)
        here.work.sibling = lambda name: place if name == "own" else f"scripted:{name}"  # type: ignore[method-assign]
        with pytest.raises(ConfigurationError, match="place that the letters are in"):
            dlq.redrive(patch=Patch.read({"destination": "own"}))
        object.__setattr__(here.work.capabilities, "destinations", Support.NONE)
        with pytest.raises(ConfigurationError, match="no destination of its own"):
            dlq.redrive(patch=Patch.read({"destination": "x"}), settings=RedriveSettings(dry_run=True))
    assert not here.work.stored


def test_an_edited_message_never_goes_under_the_identity_of_the_one_that_may_have_arrived() -> None:
    """A destination that has the first one would drop the edited one, and confirm it."""
    context = replace(CONTEXT, maybe_delivered=True, message_id="a", identity="first")
    here = DeadLetterSetup(letter("a", context=context), letter("b", context=context))
    with here.dlq() as dlq:
        assert dlq.redrive(["a"], patch=AMOUNT).redriven == 1
        assert dlq.redrive(["b"]).redriven == 1
    edited, plain = here.work.stored
    assert (edited.id, plain.id, plain.identity) == ("a~1", "b", "first")
    assert edited.identity not in {None, "first", "a"}


def test_an_edited_event_is_another_event_whoever_wrote_it() -> None:
    event = {"specversion": "1.0", "type": "t", "source": "s", "id": "e1", "data": {"amount": 1.0}}
    message = Message(value=str(event).replace("'", '"').encode(), id="e1", headers=())
    declared = replace(message, headers=(("content-type", b"application/cloudevents+json"),))
    assert events.event_in(declared) is not None
    native = replace(CONTEXT, kind="expired")
    here = DeadLetterSetup(Letter(position="p", message=declared, context=native))
    with here.dlq() as dlq:
        dlq.redrive(patch=Patch.read({"body": [{"op": "replace", "path": "/data/amount", "value": 7}]}))
    (back,) = here.work.stored
    assert back.id == "e1~1"
    assert back.value == (message.value or b"").replace(b"1.0}", b"7}")


FAIL = RedriveSettings(max_returns=None)


def killed_before_it_is_noted(here: DeadLetterSetup, journal: Path, patch: Patch | None, monkeypatch: Any) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt("killed here")

    remove = here.place.remove
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "sent", die)
        here.place.remove = lambda _positions: 0  # type: ignore[method-assign]
        with here.dlq() as dlq, pytest.raises(KeyboardInterrupt):
            dlq.redrive(patch=patch, journal=journal)
    here.place.remove = remove  # type: ignore[method-assign]


@pytest.mark.parametrize(("first", "then"), [(AMOUNT, OTHER), (AMOUNT, None), (None, AMOUNT)])
def test_killed_between_send_and_note_no_letter_is_sent_in_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Patch | None, then: Patch | None
) -> None:
    here, journal = DeadLetterSetup(letter("a")), tmp_path / "journal"
    killed_before_it_is_noted(here, journal, first, monkeypatch)
    (sent,) = here.work.stored
    with here.dlq() as dlq:
        for _ in range(2):
            report = dlq.redrive(patch=then, journal=journal)
            assert (report.considered, report.redriven, sum(report.left.values())) == (1, 0, 1)
            assert "may have been sent already" in next(iter(report.left))
        assert [each.value for each in here.work.stored] == [sent.value]
        report = dlq.redrive(patch=first, journal=journal)
        assert (report.redriven, report.left) == (1, {})
    assert {(each.value, each.id, each.identity) for each in here.work.stored} == {
        (sent.value, sent.id, sent.identity)
    }, "again in the same form, as the same message"
    with Journal(journal, dlq.place) as opened:
        assert opened.unsure() == {}
    here.place.letters.append(letter("a", b'{"amount": 1, "died": "later"}'))
    with here.dlq() as dlq:
        assert dlq.redrive(patch=OTHER, journal=journal).redriven == 1, "another letter at that place"


def test_what_was_confirmed_is_only_removed_whatever_the_next_patch_is(tmp_path: Path) -> None:
    here, journal = DeadLetterSetup(letter("a")), tmp_path / "journal"
    remove = here.place.remove

    def fails(_positions: object) -> int:
        raise Retriable("killed here")

    here.place.remove = fails  # type: ignore[method-assign]
    with here.dlq() as dlq, pytest.raises(Retriable):
        dlq.redrive(patch=AMOUNT, journal=journal)
    here.place.remove = remove  # type: ignore[method-assign]
    with here.dlq() as dlq:
        report = dlq.redrive(patch=OTHER, journal=journal)
    assert (report.resumed, report.redriven, len(here.work.stored)) == (1, 0, 1)
    assert not here.place.letters


def test_a_letter_that_was_surely_refused_may_be_edited_otherwise(tmp_path: Path) -> None:
    here, journal = DeadLetterSetup(letter("a"), letter("b")), tmp_path / "journal"
    here.work.script = {"a~1": ["permanent", "ok"]}
    with here.dlq() as dlq:
        report = dlq.redrive(patch=AMOUNT, journal=journal)
        assert (report.redriven, report.failed) == (1, 1)
        assert dlq.redrive(patch=OTHER, journal=journal).redriven == 1
    assert sorted(each.value or b"" for each in here.work.stored) == [b'{"amount": 2}', b'{"amount": 3}']


def test_a_letter_without_an_answer_stays_for_the_same_patch(tmp_path: Path) -> None:
    here, journal = DeadLetterSetup(letter("a")), tmp_path / "journal"
    here.work.script = {"a~1": ["lost"] * 9}
    with here.dlq() as dlq:
        assert dlq.redrive(patch=AMOUNT, journal=journal).failed == 1
        here.work.script = {}
        assert dlq.redrive(patch=OTHER, journal=journal).redriven == 0
        assert dlq.redrive(patch=AMOUNT, journal=journal).redriven == 1


def test_a_dry_run_shows_the_first_edits_and_sends_nothing() -> None:
    here = DeadLetterSetup(*(letter(f"n{at}", b'{"amount": 1, "password": "hunter2"}') for at in range(5)))
    seen: list[tuple[Letter, Message, Message]] = []
    settings = RedriveSettings(dry_run=True, on_edit=lambda *each: seen.append(each), edits=2)
    with here.dlq() as dlq:
        assert dlq.redrive(patch=AMOUNT, settings=settings).selected == 5
    assert [each.position for each, _, _ in seen] == ["p-n0", "p-n1"]
    assert not here.work.stored
    lines = list(diff("n0", *seen[0][1:], mask=masking(["amount"])))
    assert '-  "***": 1,' in lines
    assert '+  "***": 2,' in lines
    assert not any("hunter2" in line for line in lines)


def test_a_diff_drives_no_terminal_and_is_bounded() -> None:
    evil = (("evil\x1b", b"\x07"), ("authorization", b"s3cret"))
    before = Message(value=b"\x1b[2J" + "\u202e".encode(), headers=evil)
    after = replace(before, value=b"x", headers=(("authorization", b"other"),))
    lines = list(diff("\x1b]0;", before, after))
    assert all(line.isprintable() for line in lines)
    assert not any("s3cret" in line or "other" in line for line in lines)
    long = replace(before, value=b"[" + b"1," * 50_000 + b"1]")
    assert any("too long" in line for line in diff("n", long, before))
    many = replace(before, value=b"\n".join(b"%d" % at for at in range(1_500)))
    assert len(list(diff("n", many, before))) < 110
    assert max(map(len, diff("n", before, replace(before, value=b"y" * 100_000)))) < 500


def test_a_patch_is_read_from_yaml_and_json_to_the_last_digit(tmp_path: Path) -> None:
    text = 'body:\n- {op: add, path: /n, value: {big: 12345678901234567890.10, one: 1.0, "yes": "no"}}\nkey: null\n'
    (tmp_path / "p.yaml").write_text(text)
    same = '{"body":[{"op":"add","path":"/n","value":{"big":12345678901234567890.10,"one":1.0,"yes":"no"}}],"key":null}'
    (tmp_path / "p.json").write_text(same)
    one, two = Patch.read(tmp_path / "p.yaml"), Patch.read(str(tmp_path / "p.json"))
    assert one.form == two.form != AMOUNT.form
    assert pickle.loads(pickle.dumps(one)).form == one.form  # noqa: S301 - our own
    message = one.apply(Message(value=b"{}", key=b"k"))
    assert message.value == b'{"n":{"big":12345678901234567890.10,"one":1.0,"yes":"no"}}'
    assert message.key is None
    again = one.apply(Message(value=b"{}"))
    assert again.value == message.value


def test_no_letter_changes_the_patch_for_the_next_one() -> None:
    patch = Patch.read(
        {"body": [{"op": "add", "path": "/l", "value": []}, {"op": "add", "path": "/l/-", "value": {"x": []}}]}
    )
    assert {patch.apply(Message(value=b"{}")).value for _ in range(3)} == {b'{"l":[{"x":[]}]}'}


def bad_patches() -> Iterator[tuple[str, str]]:
    yield "", "a mapping"
    yield "[]", "a mapping"
    yield "{}", "changes nothing"
    yield "body: []", "changes nothing"
    yield "bdy: 1", "did you mean 'body'"
    yield "body: x", "list of operations"
    yield "body: [{op: ad, path: /a}]", "operation 1 has no `op`"
    yield "body: [{op: add, path: /a}]", "needs `path` and `value`"
    yield "body: [{op: remove, path: a}]", "operation 1"
    yield "body: [{op: move, path: /a, from: b}]", "operation 1"
    yield "body: [{op: remove, path: /a, valu: 1}]", "valu"
    yield "body: [{op: add, path: /a, value: 2026-01-01}]", "quotes"
    yield "body: [{op: add, path: /a, value: .nan}]", "quotes"
    yield "body: [{op: add, path: /a, value: 0x10}]", "quotes"
    yield "body: [{op: add, path: /a, value: {1: 2}}]", "quotes"
    yield "headers: {set: {a: 1}}", "in quotes"
    yield "headers: {set: [a]}", "mapping of names"
    yield "headers: {unset: a}", "list of names"
    yield "headers: {sett: {a: b}}", "mapping of set"
    yield "headers: {set: {a: b}, unset: [a]}", "both set and unset"
    yield f"headers: {{unset: [{dialects.MARKERS[0]}]}}", "not yours"
    yield "key: 5", "in quotes"
    yield "key: {base64: '?'}", "base64"
    yield "destination: 5", "as text"
    yield "destination: ''", "as text"
    yield "key: a\nkey: b", "written twice"
    yield '{"key": "a", "key": "b"}', "given twice"
    yield "a: [", "line 1"
    yield "key: !!python/object:os.system x", "not JSON or YAML"


@pytest.mark.parametrize(("text", "why"), list(bad_patches()))
def test_a_patch_that_cannot_be_meant_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "p").write_text(text)
    with pytest.raises(ConfigurationError, match=why) as found:
        Patch.read(tmp_path / "p")
    assert "\n" not in str(found.value)


def test_a_file_that_is_no_patch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b" " * 2_000_000)
    (tmp_path / "latin").write_bytes(b"key: \xff")
    for name in ("big", "latin", "absent"):
        with pytest.raises(ConfigurationError):
            Patch.read(tmp_path / name)
    with pytest.raises(ConfigurationError, match="RE2"):
        masking(["("])
