"""A message of another application is written again as it was: types of attributes, body, trace header, group."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.deadletters.queue import dead_letters
from redelivery.kit.letters import MARKERS, attach, read
from redelivery_conformance.statements import Statements
from redelivery_conformance.subject import Subject
from redelivery_sqs import CAPABILITIES
from redelivery_sqs.client.limits import GROUP
from redelivery_sqs.codec import MAX_ATTRIBUTES, PACKED, PACKED_BESIDE, TRACE, TRANSFER, decode, encode
from redelivery_sqs.testing import SqsPlace

MOST = 1 << 20
TRACED = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
#: An attribute of our name whose members are not ours, and texts that we may have written.
OBJECT = {"DataType": "String", "StringValue": '{"v":2}'}
OURS_DAMAGED = ('{"id":"i","v":2}', '{"body":"null"}', '{"id":')
MARKER = (MARKERS[0], b'{"hops":1}')

texts = st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF), min_size=1, max_size=20)
attributes = st.one_of(
    st.builds(lambda text: {"DataType": "String", "StringValue": text}, texts),
    st.builds(lambda text: {"DataType": "String.custom", "StringValue": text}, texts),
    st.builds(lambda number: {"DataType": "Number", "StringValue": str(number)}, st.integers() | st.just("7.50")),
    st.builds(lambda number: {"DataType": "Number.int", "StringValue": str(number)}, st.integers()),
    st.builds(lambda data: {"DataType": "Binary", "BinaryValue": data}, st.binary(min_size=1, max_size=20)),
    st.builds(lambda data: {"DataType": "Binary.gif", "BinaryValue": data}, st.binary(min_size=1, max_size=20)),
)
marked = st.just({"DataType": "String", "StringValue": "base64"})
names = st.text("abzAZ09_-.", min_size=1, max_size=6).filter(
    lambda name: not name.startswith(".") and not name.endswith(".") and ".." not in name
)
foreign = st.builds(
    lambda body, given, system: {"Body": body, "MessageAttributes": given, "Attributes": system},
    texts | st.binary(max_size=30).map(lambda data: base64.encodebytes(data).decode() or "x"),
    st.dictionaries(names | st.just(TRANSFER), attributes | marked, max_size=10),
    st.fixed_dictionaries({}, optional={TRACE: st.just(TRACED), "MessageGroupId": st.just("tenant")}),
)


def sent(message: Message) -> dict[str, Any]:
    return encode(message, MOST).entry


def as_given(raw: dict[str, Any]) -> dict[str, Any]:
    """The entry by which another application has sent it, apart from its group."""
    entry: dict[str, Any] = {"MessageBody": raw["Body"]}
    if raw["MessageAttributes"]:
        entry["MessageAttributes"] = raw["MessageAttributes"]
    if TRACE in raw["Attributes"]:
        entry["MessageSystemAttributes"] = {TRACE: {"DataType": "String", "StringValue": TRACED}}
    return entry


@given(foreign)
def test_it_is_written_as_it_was(raw: dict[str, Any]) -> None:
    message, _ = decode(raw)
    message = pickle.loads(pickle.dumps(message))  # noqa: S301 - our own
    assert sent(message) == as_given(raw)


@given(foreign)
def test_a_redrive_adds_its_marker_and_nothing_else(raw: dict[str, Any]) -> None:
    assume(len(raw["MessageAttributes"]) < MAX_ATTRIBUTES)
    message, _ = decode(raw)
    entry = sent(replace(message, headers=(*message.headers, MARKER)))
    assert entry["MessageAttributes"].pop(MARKER[0]) == {"DataType": "String", "StringValue": '{"hops":1}'}
    assert {name: value for name, value in entry.items() if value != {}} == as_given(raw)


@given(foreign)
def test_its_letter_has_its_attributes_as_they_were_and_the_reason_where_there_is_room(raw: dict[str, Any]) -> None:
    message, _ = decode(raw)
    letter = attach(
        message, ErrorContext(reason="closed in 1969"), dialect="json", limits=CAPABILITIES.limits, prefix=None
    )
    entry = sent(letter)
    assert len(entry["MessageAttributes"]) <= MAX_ATTRIBUTES
    theirs = {name: entry["MessageAttributes"].get(name) for name in raw["MessageAttributes"]}
    assert theirs == raw["MessageAttributes"]
    assert entry["MessageBody"] == raw["Body"]
    stored = {"Body": raw["Body"], "MessageAttributes": entry["MessageAttributes"], "Attributes": raw["Attributes"]}
    found, _ = decode(stored)
    context = read(found)
    if len(raw["MessageAttributes"]) < MAX_ATTRIBUTES:
        assert context is not None
        assert context.reason == "closed in 1969"
    else:
        assert context is None
        assert encode(letter, MOST).bare


def raw_with(count: int) -> dict[str, Any]:
    given = {f"a{at}": {"DataType": "Number", "StringValue": str(at)} for at in range(count)}
    return {"Body": "theirs", "MessageAttributes": given, "Attributes": {}}


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_up_to_nine_attributes_leave_room_for_a_marker_of_its_own(count: int) -> None:
    """The marker gets its own attribute: the message gets none that only redelivery reads."""
    message, _ = decode(raw_with(count))
    marked = replace(message, headers=(*message.headers, MARKER))
    assert sent(marked)["MessageAttributes"].keys() == {*raw_with(count)["MessageAttributes"], MARKER[0]}


def test_ten_attributes_stay_and_the_marker_goes() -> None:
    message, _ = decode(raw_with(10))
    found = encode(replace(message, headers=(*message.headers, MARKER)), MOST)
    assert found.attributes == raw_with(10)["MessageAttributes"]
    assert found.bare


def test_a_header_that_somebody_adds_to_ten_attributes_is_not_lost() -> None:
    """Bytes alone do not show which of the ten the user wants; all of them come back."""
    message, _ = decode(raw_with(10))
    mended = replace(message, headers=(*message.headers, ("added", b"1")))
    entry = sent(mended)
    assert len(entry["MessageAttributes"]) <= MAX_ATTRIBUTES
    again, fault = decode({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]})
    assert fault is None
    assert again.headers == mended.headers


def test_a_value_that_was_mended_is_text_and_the_others_keep_their_types() -> None:
    message, _ = decode(raw_with(2))
    entry = sent(replace(message, headers=(("a0", b"mended"), ("a1", b"1"))))
    assert entry["MessageAttributes"] == {
        "a0": {"DataType": "String", "StringValue": "mended"},
        "a1": {"DataType": "Number", "StringValue": "1"},
    }


def test_a_header_that_was_removed_stays_away() -> None:
    message, _ = decode(raw_with(2))
    assert sent(replace(message, headers=())).keys() == {"MessageBody"}


def test_a_mended_body_is_written_as_ours() -> None:
    given = {TRANSFER: {"DataType": "String", "StringValue": "base64"}}
    message, _ = decode({"Body": base64.b64encode(b"text").decode(), "MessageAttributes": given})
    assert message.value == b"text"
    assert sent(replace(message, value=b"mended")) == {"MessageBody": "mended"}


def test_what_is_ours_needs_no_native_part() -> None:
    for message in (
        Message(value=b"v", id="i", key=b"k"),
        Message(value=b"\0"),
        Message(value=None),
        Message(value=b"v"),
    ):
        found, _ = decode(
            {"Body": sent(message)["MessageBody"], "MessageAttributes": sent(message).get("MessageAttributes")}
        )
        assert found == message
        assert found.native is None
        assert PACKED not in (found.headers or ())


@pytest.mark.parametrize(
    "theirs",
    [
        {"DataType": "String", "StringValue": "yes"},
        {"DataType": "String", "StringValue": "[" * 100_000},
        {"DataType": "String.json", "StringValue": '{"v":2}'},
        {"DataType": "String", "StringValue": "{}"},
        {"DataType": "String", "StringValue": '{"id":"i","v":2}'},
        {"DataType": "String", "StringValue": '{"body":"null"}'},
        {"DataType": "String", "StringValue": '{"id":'},
        {"DataType": "Number", "StringValue": "7"},
        {"DataType": "Binary", "BinaryValue": b"\1"},
    ],
)
@pytest.mark.parametrize("count", [0, 1, 9])
def test_an_attribute_of_our_name_is_sent_again_as_it_was(theirs: dict[str, Any], count: int) -> None:
    raw = raw_with(count)
    raw["MessageAttributes"][PACKED] = theirs
    message, fault = decode(raw)
    assert (fault is None) == (theirs.get("StringValue") not in OURS_DAMAGED)
    assert (message.id, message.key) == (None, None)
    assert sent(message) == as_given(raw)
    entry = sent(replace(message, headers=(*message.headers, MARKER)))
    assert len(entry["MessageAttributes"]) <= MAX_ATTRIBUTES
    assert {name: entry["MessageAttributes"].get(name) for name in raw["MessageAttributes"]} == raw["MessageAttributes"]


@pytest.mark.parametrize("count", [0, 1, 7, 8])
@pytest.mark.parametrize("theirs", [{"DataType": "String", "StringValue": "yes"}, OBJECT], ids=["text", "object"])
def test_where_ours_is_needed_it_stands_beside_theirs(theirs: dict[str, Any], count: int) -> None:
    """A letter, and what is sent back of it, hold the application's attribute and ours."""
    raw = raw_with(count)
    raw["MessageAttributes"][PACKED] = theirs
    message, fault = decode(raw)
    assert fault is None
    known = replace(message, id="i", key=b"k", headers=(*message.headers, ("odd", b"\xff")))
    entry = sent(known)
    assert len(entry["MessageAttributes"]) <= MAX_ATTRIBUTES
    assert {name: entry["MessageAttributes"].get(name) for name in raw["MessageAttributes"]} == raw["MessageAttributes"]
    again, fault = decode({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]})
    assert (again.id, again.key, sorted(again.headers), fault) == ("i", b"k", sorted(known.headers), None)
    assert sent(again) == entry
    back = replace(again, id=None, key=None, headers=message.headers)
    assert sent(back) == as_given(raw)


def test_a_message_with_attributes_of_both_our_names_keeps_them_unless_ours_is_needed() -> None:
    raw = raw_with(1)
    raw["MessageAttributes"] |= {PACKED: OBJECT, PACKED_BESIDE: OBJECT}
    message, fault = decode(raw)
    assert (fault, sent(message)) == (None, as_given(raw))
    entry = sent(replace(message, id="i"))
    again, fault = decode({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]})
    assert (again.id, fault) == ("i", None)


@pytest.mark.parametrize("theirs", [*OURS_DAMAGED, '{"headers":5}'])
@pytest.mark.parametrize("count", [0, 7, 8])
def test_the_letter_of_a_message_whose_attribute_of_ours_is_damaged_has_its_reason(theirs: str, count: int) -> None:
    raw = raw_with(count)
    raw["MessageAttributes"][PACKED] = {"DataType": "String", "StringValue": theirs}
    message, fault = decode(raw)
    assert fault is not None
    known = replace(message, headers=(*message.headers, ("odd", b"\xff")))
    letter = attach(known, ErrorContext(reason="closed"), dialect="json", limits=CAPABILITIES.limits, prefix=None)
    entry = sent(letter)
    found, _ = decode({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]})
    context = read(found)
    assert context is not None
    assert context.reason == "closed"
    assert sorted(found.headers) == sorted(letter.headers)
    assert sent(replace(found, headers=message.headers)) == as_given(raw)


@pytest.mark.parametrize("theirs", ["yes", None])
@pytest.mark.parametrize("name", [PACKED_BESIDE, "a0"])
def test_a_header_that_is_added_comes_back_whatever_attribute_has_its_name(theirs: str | None, name: str) -> None:
    raw = raw_with(1)
    if theirs is not None:
        raw["MessageAttributes"][PACKED] = {"DataType": "String", "StringValue": theirs}
    message, _ = decode(raw)
    known = replace(message, headers=(*message.headers, (name, b'{"id":"x"}')), id="i")
    entry = sent(known)
    found, fault = decode({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]})
    assert (found.headers, found.id, fault) == (known.headers, "i", None)


def test_our_second_name_is_any_header_where_nobody_has_the_first() -> None:
    raw = raw_with(0)
    raw["MessageAttributes"] = {PACKED_BESIDE: {"DataType": "String", "StringValue": '{"id":"theirs"}'}}
    message, _ = decode(raw)
    assert (message.id, message.headers) == (None, ((PACKED_BESIDE, b'{"id":"theirs"}'),))
    assert sent(message) == as_given(raw)


def test_a_body_that_was_mended_is_base64_whatever_an_attribute_said() -> None:
    raw = raw_with(1)
    raw["MessageAttributes"][TRANSFER] = {"DataType": "String", "StringValue": "7bit"}
    message, _ = decode(raw)
    entry = sent(replace(message, value=b"\xff\xfe"))
    again, fault = decode({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]})
    assert (again.value, again.headers, fault) == (b"\xff\xfe", message.headers, None)


def test_a_header_of_our_name_does_not_stand_for_our_attribute() -> None:
    raw = raw_with(1)
    raw["MessageAttributes"][PACKED] = {"DataType": "String", "StringValue": "yes"}
    message, _ = decode(raw)
    entry = sent(replace(message, headers=(*message.headers, (PACKED, b"yes")), id="i"))
    again, fault = decode({"Body": entry["MessageBody"], "MessageAttributes": entry["MessageAttributes"]})
    assert (again.id, dict(again.headers)[PACKED], fault) == ("i", b"yes", None)


def test_the_native_part_tells_its_size() -> None:
    raw = raw_with(1)
    raw["MessageAttributes"]["large"] = {"DataType": "String", "StringValue": "x" * 10_000}
    native: Any = decode(raw)[0].native
    assert 10_000 < native.nbytes < 11_000


def test_a_native_part_of_another_broker_is_ignored() -> None:
    plain = Message(value=b"v", headers=(("a", b"1"),))
    assert sent(replace(plain, native={"properties": 1})) == sent(plain)


class TestAtABroker(Statements):
    broker = "sqs"

    def test_the_group_of_a_row_is_its_tenant_in_a_fair_queue(self, subject: Subject) -> None:
        """By its column; by its key only where that is asked for. Text that SQS does not accept goes as its SHA-256."""
        subject.deliver(Message(value=b"none", key=b"k"), Message(value=b"column", extra={GROUP: "tenant"}))
        fair = {"sqs.fair_by_key": "true"}
        rows = [Message(value=b"key", key=b"k"), Message(value=b"odd", key=b"\xff")]
        rows += [Message(value=b"both", key=b"k", extra={GROUP: "tenant"}), Message(value=b"neither")]
        with subject.connect(options=fair).sender() as sender:
            assert not subject.settle(sender, batch := subject.batch(rows))[batch.number].failures
        groups = {each["Body"]: each["Attributes"].get("MessageGroupId") for each in stored(subject)}
        odd = groups.pop("odd")
        assert odd is not None
        assert odd.startswith("sha256-")
        assert groups == {"none": None, "column": "tenant", "key": "k", "both": "tenant", "neither": None}

    def test_a_letter_keeps_the_group_of_its_row_and_brings_it_back(self, subject: Subject) -> None:
        context = ErrorContext(reason="closed", extra={GROUP: "tenant"})
        letter = Message(value=b"v", key=b"k", id="i", extra={GROUP: "tenant"})
        letter = attach(letter, context, dialect="json", limits=CAPABILITIES.limits, prefix=None)
        subject.deliver(letter, url=subject.broker.native_sink())
        with dead_letters(subject.place.url, options=subject.place.options) as box:
            assert box.redrive().removed == 1
        assert [each["Attributes"].get("MessageGroupId") for each in stored(subject)] == ["tenant"]

    def test_a_letter_that_has_no_room_for_its_reason_is_told_of_once(
        self, subject: Subject, caplog: pytest.LogCaptureFixture
    ) -> None:
        message, _ = decode(raw_with(10))
        letter = attach(message, ErrorContext(reason="closed"), dialect="json", limits=CAPABILITIES.limits, prefix=None)
        for _ in range(2):
            subject.deliver(letter, url=subject.broker.native_sink())
        told = [record for record in caplog.records if "ten attributes of its own" in record.getMessage()]
        assert len(told) == 1
        found = [each.message for each in subject.browse(direct=False)]
        assert [each.headers for each in found] == [message.headers] * 2


def stored(subject: Subject) -> Sequence[Mapping[str, Any]]:
    assert isinstance(subject.place, SqsPlace)
    return subject.place.raw()
