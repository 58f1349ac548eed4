"""A signed letter says what was signed; of any other no header counts, where a key is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_deadletters import CONTEXT, DeadLetterSetup
from test_dialects_properties import (
    ALL,
    NO_LIMITS,
    STRUCTURED,
    any_dialect,
    contexts,
    limits,
    long_context,
    messages,
    prefixes,
    within,
)

from redelivery import registry
from redelivery.codes import Code
from redelivery.contract.broker import Letter, Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.trust import UNSIGNED
from redelivery.errors import ConfigurationError, InvalidSpec, MissingSecret
from redelivery.formats import dialects, signing

KEY = b"a key that nobody else has"
OTHER = b"another key, of somebody else"
REFERENCE = "env:SIGNING_TEST_KEY"


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SIGNING_TEST_KEY", KEY.decode())
    monkeypatch.setenv("SIGNING_OTHER_KEY", OTHER.decode())
    signing.key.cache_clear()
    registry.installed()  # loaded before any example is timed
    yield
    signing.key.cache_clear()


def signed(message: Message, context: ErrorContext = CONTEXT, dialect: Any = "json", **options: Any) -> Message:
    return dialects.attach(
        message, context, **{"dialect": dialect, "limits": NO_LIMITS, "prefix": "ce_", "key": KEY} | options
    )


def said(message: Message) -> tuple[object, ...]:
    """What counts of a letter: its context, its lives, and the message that it is about."""
    bare = dialects.strip(message)
    return dialects.read(message), dialects.history(message), bare.key or b"", bare.value or b""


@given(messages, contexts | st.just(long_context), any_dialect, prefixes, limits)
def test_whatever_the_limits_a_letter_with_a_context_is_signed_and_fits(
    message: Message, context: ErrorContext, dialect: Any, prefix: str | None, limit: Limits
) -> None:
    letter = signed(message, context, dialect, prefix=prefix, limits=limit)
    assert letter == message or within(letter, message, limit)
    assert letter == message or dialects.is_signed(letter, [OTHER, KEY])
    assert not dialects.is_signed(letter, [OTHER])
    assert not dialects.is_signed(letter, [])


@given(messages, contexts, any_dialect, prefixes)
def test_a_signature_changes_nothing_that_is_read(
    message: Message, context: ErrorContext, dialect: Any, prefix: str | None
) -> None:
    letter, plain = (signed(message, context, dialect, prefix=prefix, key=key) for key in (KEY, None))
    assert said(letter) == said(plain)
    assert dialects.redriven(letter) == dialects.redriven(plain), "a signature goes back to work"
    assert letter == message or not dialects.is_signed(plain, [KEY])


@st.composite
def tampered(draw: st.DrawFn, letter: Message) -> Message:
    """The letter, one thing of it changed."""
    what = draw(st.sampled_from(["value", "key", "header", "header", "header", "drop", "copy", "add"]))
    some = st.none() | st.binary(max_size=9)
    if what in {"value", "key"}:
        return replace(letter, **{what: draw(some)})
    headers, at = list(letter.headers), draw(st.integers(0, len(letter.headers) - 1))
    name, value = headers[at]
    if what == "drop":
        del headers[at]
    elif what == "add":
        names = ["deadletterreason", "ce-deadletterreason", "__connect.errors.stage", "redelivery-context", name]
        headers.insert(at, (draw(st.sampled_from(names)), draw(some)))
    else:
        cut, changed = draw(st.integers(0, len(value or b""))), value or b""
        changed = changed[:cut] + draw(st.binary(max_size=3)) + changed[cut + draw(st.integers(0, 3)) :]
        headers[at : at + (what == "header")] = [(name, changed)]
    return replace(letter, headers=tuple(headers))


@given(messages, contexts, any_dialect, prefixes, st.data())
def test_a_letter_that_counts_as_signed_says_what_was_signed_whatever_was_done_to_it(
    message: Message, context: ErrorContext, dialect: Any, prefix: str | None, data: st.DataObject
) -> None:
    letter = signed(message, context, dialect, prefix=prefix)
    if not letter.headers:
        return
    changed = data.draw(tampered(letter))
    if dialects.is_signed(changed, [KEY]):
        assert said(changed) == said(letter)


BODY = json.dumps({"specversion": "1.0", "id": "1", "source": "s", "type": "t"}).encode()
RAW = Message(value=b"v", key=b"k", headers=(("mine", b"1"),))
EVENT = Message(value=BODY, key=b"k", headers=(STRUCTURED,))


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("message", [RAW, EVENT], ids=["raw", "structured"])
def test_any_change_of_what_was_signed_makes_a_letter_unsigned(message: Message, dialect: Any) -> None:
    letter = signed(message, replace(CONTEXT, target="q2", run="r"), dialect)
    assert dialects.is_signed(letter, [KEY])
    changed = [
        replace(letter, value=(letter.value or b"") + b" "),
        replace(letter, key=b"l"),
        replace(letter, key=None),
    ]
    ours = [at for at, (name, _) in enumerate(letter.headers) if name not in {name for name, _ in message.headers}]
    for at in ours:
        name, value = letter.headers[at]
        assert value
        others = [((name, value[:-2] + b"x" + value[-1:]),), ((name, b""),), ()]
        changed += [replace(letter, headers=letter.headers[:at] + each + letter.headers[at + 1 :]) for each in others]
    (at,) = (at for at in ours if letter.headers[at][0] == "redelivery-letter")
    form = json.loads(letter.headers[at][1] or b"")
    for member, value in {
        "hops": 4,
        "attempts_total": 9,
        "maybe_delivered": True,
        "headers": [],
        "mac": "é\ud800",
    }.items():
        marker = ("redelivery-letter", json.dumps({**form, member: value}).encode())
        changed.append(replace(letter, headers=(*letter.headers[:at], marker, *letter.headers[at + 1 :])))
    if message is EVENT and dialect not in {"connect", "json"}:
        changed.append(replace(letter, value=(letter.value or b"").replace(b'"no"', b'"on"').replace(b'"No"', b'"On"')))
        assert changed[-1].value != letter.value
    for each in changed:
        assert not dialects.is_signed(each, [KEY]), each


def test_a_letter_stays_signed_in_any_order_of_headers_and_under_another_prefix() -> None:
    letter = signed(RAW, dialect=("deadletter", "connect"))
    for headers in (
        permutations(letter.headers, len(letter.headers)) if len(letter.headers) < 7 else [letter.headers[::-1]]
    ):
        assert dialects.is_signed(replace(letter, headers=headers), [KEY])
    moved = tuple((name.replace("ce_", "ce-"), value) for name, value in letter.headers)
    assert dialects.is_signed(replace(letter, headers=moved), [KEY])


def box_of(
    *letters: Message, native: ErrorContext | None = None, key: str | None = REFERENCE
) -> tuple[DeadLetterSetup, Any]:
    here = DeadLetterSetup(
        *(Letter(position=f"p-{at}", message=each, context=native) for at, each in enumerate(letters))
    )
    return here, here.dlq(key=key)


TARGETED = replace(CONTEXT, target="victim")


@pytest.mark.parametrize(
    "forged",
    [
        signed(RAW, TARGETED, key=None),
        signed(RAW, TARGETED, key=OTHER),
        signed(RAW, TARGETED, dialect="connect", key=None),
        replace(RAW, headers=(("__connect.errors.exception.message", b"no"), ("deadletterreason", b"no"))),
        RAW,
    ],
    ids=["without", "another key", "connect", "no marker", "no context"],
)
def test_nothing_of_a_letter_that_is_not_signed_is_believed(forged: Message) -> None:
    here, dlq = box_of(forged, signed(RAW))
    with dlq:
        first, second = dlq
        assert first.context == ErrorContext(
            kind=UNSIGNED, reason="no key that was given has signed what its headers say"
        )
        assert second.context == dialects.read(signed(RAW))
        report = dlq.redrive(where=Selection.parse("kind=permanent"))
        assert (report.considered, report.redriven) == (1, 1)
        assert dlq.redrive().redriven == 1
    assert [each.destination for each in here.work.stored] == [None, None]


def test_what_the_broker_knows_of_an_unsigned_letter_is_told() -> None:
    native = ErrorContext(kind="expired", code=Code.EXPIRED, reason="its time was over")
    _, dlq = box_of(signed(RAW, TARGETED, key=None), native=native)
    with dlq:
        assert [each.context for each in dlq] == [native]


def test_the_target_of_a_signed_letter_is_followed() -> None:
    here, dlq = box_of(signed(RAW, TARGETED))
    with dlq:
        report = dlq.redrive()
    assert report.targets == {"victim": 1}
    assert [each.destination for each in here.work.stored] == ["victim"]


def test_a_target_that_is_beside_the_signed_one_is_not_followed() -> None:
    _, dlq = box_of(replace(signed(RAW, TARGETED), destination="elsewhere"))
    with dlq:
        assert dlq.redrive().left == {"its target 'elsewhere' is not allowed (--allow-targets)": 1}


def test_several_keys_may_be_given_so_that_a_key_can_be_changed() -> None:
    _, dlq = box_of(signed(RAW), signed(RAW, key=OTHER), key=f"{REFERENCE}, env:SIGNING_OTHER_KEY")
    with dlq:
        assert [each.signed for each in dlq] == [True, True]
    _, dlq = box_of(signed(RAW), key=None)
    with dlq:
        assert [each.signed for each in dlq] == [None]


def test_a_key_is_a_reference_and_is_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = "a literal key of a job"  # noqa: S105 - that it is none is the point
    for call in (
        lambda: DeliverySpec(letter_key=secret),
        lambda: signing.references(f"{REFERENCE},{secret}"),
        lambda: signing.key(secret),
    ):
        with pytest.raises((InvalidSpec, ConfigurationError), match=r"letterKey: .*reference") as caught:
            call()
        assert secret not in str(caught.value)
    monkeypatch.setenv("SIGNING_SHORT", "fifteen letters")
    with pytest.raises(ConfigurationError, match="fewer than 16 bytes") as caught:
        signing.key("env:SIGNING_SHORT")
    assert "fifteen" not in str(caught.value)
    with pytest.raises(MissingSecret):
        signing.key(f"file:{tmp_path}/missing")
    assert REFERENCE in repr(DeliverySpec(letter_key=REFERENCE))
