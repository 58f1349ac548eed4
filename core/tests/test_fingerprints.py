"""Groups: letters of one cause have one fingerprint, whatever their messages name, and in every version."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import CAUSES, Varying

from redelivery.base.secrets import remember
from redelivery.codes import Code
from redelivery.contract.broker import Letter, LetterBatch
from redelivery.contract.capabilities import Limits
from redelivery.contract.context import ErrorContext, checked
from redelivery.contract.message import Message
from redelivery.deadletters.groups import KEPT, LOOKED_AT, cause, fingerprint, fingerprints, normalised
from redelivery.deadletters.selection import Selection
from redelivery.deadletters.trust import context_of
from redelivery.errors import ConfigurationError
from redelivery.formats import dialects

#: Contexts and their fingerprints. A version that changes one makes parked groups and alerts forget what they knew: do
#: not change them; a new record of decisions says how a change would be carried over.
GOLDEN = json.loads((Path(__file__).parent / "vectors" / "fingerprints.json").read_text(encoding="utf-8"))


def letters_of(*contexts: ErrorContext) -> LetterBatch:
    """Return letters of ours, as a broker with headers returns them."""
    options = {"dialect": "json", "prefix": "ce-"}
    messages = [
        dialects.attach(Message(value=b"v", id=f"m{at}"), each, limits=Limits(), **options)
        for at, each in enumerate(contexts)
    ]
    return LetterBatch.of([Letter(position=str(at), message=each) for at, each in enumerate(messages)])


def test_ten_thousand_letters_of_twenty_causes_are_told_apart() -> None:
    varying, names = Varying(random.Random(20)), list(CAUSES)  # noqa: S311 - the same each time
    assert len(names) == 20
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for at in range(10_000):
        name = names[at % 20]
        groups[fingerprint(CAUSES[name](varying))][name] += 1
    largest = {name: max(groups.values(), key=lambda each: each[name]) for name in names}
    pure = [name for name, group in largest.items() if set(group) == {name} and group[name] >= 0.95 * 500]
    assert len(pure) >= 19, {name: largest[name] for name in names if name not in pure}
    assert len(groups) <= 30


@pytest.mark.parametrize("known", GOLDEN)
def test_a_fingerprint_is_the_same_in_every_version(known: str) -> None:
    assert fingerprint(checked(GOLDEN[known])) == known


def test_both_forms_of_letters_have_the_same_fingerprints() -> None:
    varying = Varying(random.Random(3))  # noqa: S311 - as above
    contexts = [make(varying) for make in CAUSES.values() for _ in range(3)]
    native = ErrorContext(kind="expired", source_topic="orders")
    batch = letters_of(*contexts, ErrorContext(), ErrorContext(reason="\ud800 half", kind="permanent"))
    batch = replace(batch, contexts={0: native, 5: ErrorContext(kind="delivery-limit", reason="gave up")})
    one_by_one = [fingerprint(context_of(letter)) for letter in batch.letters()]
    assert fingerprints(batch) == one_by_one
    assert one_by_one[1:4] == [fingerprint(each) for each in contexts[1:4]]
    assert one_by_one[0] == fingerprint(replace(context_of(batch.letter(0)), code=Code.EXPIRED))


def test_equal_contexts_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    known = __import__("redelivery.deadletters.groups", fromlist=["known"]).known
    monkeypatch.setattr("redelivery.deadletters.groups.known", lambda said: seen.append(said) or known(said))
    fingerprints(letters_of(*[ErrorContext(reason="full", kind="retriable")] * 50))
    assert len(seen) == 1


@pytest.mark.parametrize(("text", "becomes"), [
    ("order 17 failed after 30 ms", "order <*> failed after <*>"),
    ("retry in 1 second", "retry in <*> seconds"),
    ("retry in 12.5 seconds", "retry in <*> seconds"),
    ("offset -1 of orders-7", "offset <*> of orders-<*>"),
    ("HTTP 503 from 10.0.0.7:8080", "HTTP 503 from <*>"),
    ("[Errno 111] Connection refused", "[Errno 111] Connection refused"),
    ("status code: 404", "status code: 404"),
    ("at Mon, 02 Jan 2026 03:04:05 GMT", "at <*>"),
    ("at 2026-01-02T03:04:05.678+01:00", "at <*>"),
    ("at Jan  2 03:04:05", "at <*>"),
    (f"id {uuid.UUID(int=7)}", "id <*>"),
    ("object at 0x7f12ab34cd56", "object at <*>"),
    ("field 'sku' is missing", "field 'sku' is missing"),
    ("value 'blue' is not allowed", "value <*> is not allowed"),
    ("can't parse it, doesn't end", "can't parse it, doesn't end"),
    ('the value "never ends', "the value <*>"),
    ("amqp://user:secret@rabbit-3:5672/shop?heartbeat=30", "amqp://<*>/shop"),
    ("by alice@example.com", "by <*>"),
    ("read /tmp/alice/in/part-00017.csv", "read /tmp/<*>/in/part-<*>.csv"),
    ("C:\\Users\\alice\\x.txt is open", "C:\\Users\\<*>\\x.txt is open"),
    ("a\x00b\n\tc  d", "a b c d"),
    ("sig aGVsbG8gd29ybGQgdGhpcyBpcyBiYXNlNjQ= wrong", "sig <*> wrong"),
    ("arn:aws:sqs:eu-west-1:123456789012:orders", "arn:aws:sqs:<*>"),
    ('{"error": {"type": "mapper_parsing_exception", "reason": "field x"}, "status": 400}',
     '{"error": {"type": "mapper_parsing_exception", "reason": <*>}, "status": 400}'),
    ("", ""),
    ("größe unbekannt", "größe unbekannt"),
])  # fmt: skip
def test_what_varies_is_replaced_and_what_tells_the_cause_stays(text: str, becomes: str) -> None:
    assert normalised(text) == becomes


@given(st.text(max_size=300))
def test_any_text_has_one_short_line(text: str) -> None:
    found = normalised(text)
    assert len(found) <= KEPT
    assert "\n" not in found
    assert found == normalised(text)
    assert len(fingerprint(ErrorContext(reason=text))) == 12


NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.floats(0, 1e9, allow_nan=False).map(lambda each: f"{each:.3f}"),
    st.uuids().map(str),
    st.datetimes().map(lambda each: each.isoformat()),
    st.ip_addresses(v=4).map(str),
    st.binary(min_size=8, max_size=20).map(lambda each: f"0x{each.hex()}"),
)


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_no_number_id_time_or_address_changes_a_fingerprint(a: str, b: str, c: str, d: str) -> None:
    form = "the order {} of {} was refused: stock {} is too low"
    assert normalised(form.format(a, b, c)) == normalised(form.format(b, c, d))


@pytest.mark.parametrize(
    "unit",
    ["'", '"', "“", "[Source: ", "<*>", "@", "a@", "a.b.", "a:", '"{', "[1:", "a1-", "http ", "Jan 1", "x://", ")=(",
     "=(", "password=", "bearer ", "0", "Z<*>", "-", "\\", "~/", "\x00", "é", "\ud800", "aB3/", "a" * 63 + "."],
)  # fmt: skip
def test_hostile_text_takes_time_linear_in_what_is_looked_at(unit: str) -> None:
    text = (unit * 200_000)[:200_000]
    began = time.process_time()
    normalised(text)
    assert time.process_time() - began < 0.5
    assert normalised(text) == normalised(text[:LOOKED_AT])


def test_a_secret_neither_shows_nor_changes_a_fingerprint() -> None:
    one, two = (ErrorContext(reason=f"login failed, password={each}, try again") for each in ("hunter22x", "swordfish"))
    assert fingerprint(one) == fingerprint(two)
    assert "hunter22x" not in cause(one).message
    plain = ErrorContext(reason="no access with abracadabra here", destination="sqlite:abracadabra.db")
    before = cause(plain)
    remember("abracadabra")
    assert cause(plain) == before
    assert "abracadabra" not in "".join(before.shown())


def test_what_differs_in_code_class_or_destination_is_another_group() -> None:
    first = ErrorContext(reason="full", kind="retriable", code=Code.FULL, destination="sqlite:a")
    others = [
        replace(first, code=Code.THROTTLED),
        replace(first, kind="permanent"),
        replace(first, exception="builtins.ValueError"),
        replace(first, destination="sqlite:b"),
        replace(first, destination=None, source_topic="a"),
        replace(first, native_code="QUEUE_FULL"),
        replace(first, reason="too full"),
    ]
    assert len({fingerprint(each) for each in (first, *others)}) == 8
    same = [replace(first, attempts=7, last_failure_ms=5, run="r", message_id="x", hops=3, stacktrace="at x")]
    assert {fingerprint(each) for each in same} == {fingerprint(first)}


def test_a_group_is_selected_by_its_fingerprint() -> None:
    contexts = [ErrorContext(reason=f"order {at} is late", kind="permanent") for at in range(3)]
    batch = letters_of(*contexts, ErrorContext(reason="full", kind="retriable"))
    wanted = fingerprint(contexts[0])
    assert Selection.parse(f"group={wanted}").admitted(batch, range(4), 0) == [0, 1, 2]
    assert Selection.parse(f"group!={wanted}").admitted(batch, range(4), 0) == [3]
    whole = [replace(each, context=context_of(each)) for each in batch.letters()]
    assert [Selection.parse(f"group={wanted}").admits(each, 0) for each in whole] == [True, True, True, False]
    for text in ("group~abc", "group=abc", f"group={wanted.upper()}", "group="):
        with pytest.raises(ConfigurationError, match="group"):
            Selection.parse(text)
