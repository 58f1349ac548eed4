"""CloudEvents: any message becomes an event and comes back; modes; rows that became none."""

from __future__ import annotations

import base64
import json
import re
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from redelivery.codes import Code
from redelivery.contract.message import Message
from redelivery.errors import Permanent
from redelivery.formats import dialects, events

STRUCTURED = ("content-type", b"application/cloudevents+json")
EVENT = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}'
BINARY = (("ce_specversion", b"1.0"), ("ce_id", b"1"), ("ce_source", b"/s"), ("ce_type", b"t"))

TIMES = ("2024-01-31T12:00:00.123456789Z", "2024-01-31t12:00:00.5+01:00", "0001-01-01T00:00:00+00:00")
KINDS = ("application/json", "text/plain", "text/csv; charset=utf-8", "image/png", "application/xml")

some_bytes = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(lambda text: text.encode())
headers = st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=4).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
attribute_text = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)


@st.composite
def messages(draw):
    value = draw(some_bytes)
    others = draw(headers)
    kind = draw(st.sampled_from(["raw", "structured", "binary"]))
    if kind == "structured":
        form = {"specversion": "1.0", "id": draw(attribute_text), "source": draw(attribute_text), "type": "t"}
        form |= draw(st.sampled_from([{}, {"data": draw(json_values)}, {"data_base64": "AAE="}, {"time": "nonsense"}]))
        form |= draw(st.dictionaries(st.sampled_from(["a", "b1"]), st.booleans() | st.integers() | st.text(max_size=3)))
        form |= draw(st.sampled_from([{}, *({"time": text} for text in TIMES)]))
        form |= draw(st.sampled_from([{}, *({"datacontenttype": kind} for kind in KINDS)]))
        value = json.dumps(form, indent=draw(st.sampled_from([None, 1]))).encode()[draw(st.sampled_from([0, 1])) :]
        others = (*others, STRUCTURED)
    if kind == "binary":
        prefix = draw(st.sampled_from(events.PREFIXES))
        attributes = {"id": draw(attribute_text), "source": draw(attribute_text), "type": "t", "specversion": "1.0"}
        attributes |= draw(st.sampled_from([{}, *({"time": text} for text in TIMES)]))
        others = (*others, *((prefix + name, text.encode()) for name, text in attributes.items()))
        content_type = draw(st.sampled_from([None, *KINDS]))
        if content_type:
            others = (*others, ("content-type", content_type.encode()))
        value = draw(some_bytes | json_values.map(lambda data: json.dumps(data).encode()))
    return Message(
        value=value,
        key=draw(some_bytes),
        headers=others,
        id=draw(st.none() | st.text(max_size=5)),
        destination=draw(st.none() | st.text(max_size=5)),
        timestamp_ms=draw(st.none() | st.integers(-(2**63), 2**63)),
        extra=draw(st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | some_bytes, max_size=2)),
    )


def through_text(event):
    return events.from_json(json.loads(json.dumps(events.to_json(event))))


@given(messages())
def test_any_message_comes_back_unchanged_from_its_event_in_json(message):
    assert events.from_event(through_text(events.to_event(message))) == message


@given(messages())
def test_the_form_of_a_message_is_that_of_its_event(message):
    form = events.form_of(message)
    assert form == events.to_json(events.to_event(message))
    assert events.message_of(json.loads(json.dumps(form))) == message


def test_an_event_and_nothing_else_is_written_without_anything_of_ours():
    headers = (("ce-specversion", b"1.0"), ("ce-id", b"1"), ("ce-source", b"/a"), ("ce-type", b"t"))
    event = Message(value=b"{ }", headers=headers, id="1")
    bare = {"specversion": "1.0", "id": "1", "source": "/a", "type": "t", "data": {}}
    assert events.bare_form_of(event) == bare
    for more in ({"key": b"k"}, {"timestamp_ms": 1}, {"id": "2"}, {"headers": (*headers, ("n", b"v"))}):
        message = replace(event, **more)
        assert events.message_of(events.bare_form_of(message)) == message
    raw = Message(value=b"v", id="1")
    assert events.bare_form_of(raw) == events.form_of(raw)


@pytest.mark.parametrize("more", [("content-type-options", b"x"), ("Content-Type", b"text/html")])
def test_headers_that_are_no_part_of_an_event_are_kept_however_alike_their_names_are(more) -> None:
    structured = Message(
        value=b'{"specversion":"1.0","id":"1","source":"/a","type":"t"}',
        headers=(("content-type", b"application/cloudevents+json"), more),
    )
    attributes = (("ce-specversion", b"1.0"), ("ce-id", b"1"), ("ce-source", b"/a"), ("ce-type", b"t"))
    binary = Message(value=b"v", headers=(*attributes, ("content-type", b"text/plain"), more))
    for message in (structured, binary):
        assert events.message_of(events.bare_form_of(message)) == message


MANGLED = (
    None,
    5,
    "",
    "x",
    "\ud800",
    [],
    {"headers": [["a", 5]]},
    '{"id": 5}',
    '{"destination": 5}',
    '{"headers": [["a"]]}',
)


@given(messages(), st.sampled_from(["id", "type", "source", "time", "data", "data_base64", "redeliverymessage", "x"]))
@pytest.mark.parametrize("value", MANGLED)
def test_the_message_of_a_mangled_form_is_that_of_its_event(value, message, name):
    form = {**events.form_of(message), name: value}
    try:
        wanted = events.from_event(events.from_json(form))
    except Permanent as error:
        with pytest.raises(Permanent, match=re.escape(str(error))):
            events.message_of(form)
    else:
        assert events.message_of(form) == wanted


@pytest.mark.parametrize("value", [None, b"", b"text", b"\xff\x00", "é\x00".encode()])
@pytest.mark.parametrize("key", [None, b"", b"k", b"\xff"])
def test_null_empty_text_and_binary_are_told_apart(value, key):
    message = Message(value=value, key=key, headers=(("h", None), ("h", b""), ("h", b"\xff")))
    assert events.from_event(through_text(events.to_event(message))) == message


def test_a_raw_message_in_utf8_is_readable_in_its_event():
    form = events.to_json(events.to_event(Message(value=b"hello", id="7", timestamp_ms=0)))
    assert (form["data"], form["id"], form["type"]) == ("hello", "7", "redelivery.message")
    assert form["time"] == "1970-01-01T00:00:00Z"


def test_the_same_message_without_id_has_the_same_event_id_and_another_message_another():
    one, same, other = (events.to_event(Message(value=v)).get_id() for v in (b"x", b"x", b"y"))
    assert one == same != other


def test_a_structured_event_that_needs_nothing_more_is_itself():
    message = Message(value=EVENT, headers=(STRUCTURED,), id="1")
    assert events.to_json(events.to_event(message)) == json.loads(EVENT)
    assert events.from_event(events.to_event(message)) == message


def test_an_event_has_no_time_or_id_that_nobody_gave_it():
    event = events.from_json({"specversion": "1.0", "id": "1", "source": "s", "type": "t"})
    assert set(event.get_attributes()) == {"specversion", "id", "source", "type"}
    with pytest.raises(Permanent, match="'id'"):
        events.from_json({"specversion": "1.0", "source": "s", "type": "t"})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b"{}", EVENT[:-1], b"[" * 100_000, EVENT.replace(b"1.0", b"9.0"), None]
)
def test_a_malformed_structured_event_is_kept_as_a_raw_message(body):
    message = Message(value=body, headers=(STRUCTURED,))
    event = events.to_event(message)
    assert event.get_type() == events.WRAPPED
    assert events.from_event(through_text(event)) == message


def test_an_event_that_was_mended_by_hand_is_taken_as_it_is_now_with_its_key_and_headers():
    message = Message(value=b'{"a": 1}', key=b"k", headers=(*BINARY, ("user", b"u")), id="1")
    form = events.to_json(events.to_event(message))
    form["data"] = {"a": 2}
    mended = events.from_event(events.from_json(form))
    assert (mended.key, ("user", b"u") in mended.headers) == (b"k", True)
    event = events.to_event(mended)
    assert (event.get_data(), event.get_type()) == ({"a": 2}, "t")


def test_a_wrapped_message_that_was_mended_by_hand_has_the_new_value():
    form = events.to_json(events.to_event(Message(value=b"old", key=b"k", id="1")))
    assert events.from_event(events.from_json(form | {"data": "new"})) == Message(value=b"new", key=b"k", id="1")


def test_an_event_that_stands_for_a_message_is_itself_kept_when_it_travels():
    inner = events.to_event(Message(value=b"x", key=b"inner"))
    message = Message(value=json.dumps(events.to_json(inner)).encode(), key=b"outer", headers=(STRUCTURED,), id="1")
    assert events.from_event(through_text(events.to_event(message))) == message
    plain = Message(value=json.dumps(events.to_json(inner), separators=(",", ":")).encode(), headers=(STRUCTURED,))
    for each in (plain, Message(value=plain.value, headers=plain.headers, id=inner.get_id())):
        assert events.from_event(through_text(events.to_event(each))) == each


@pytest.mark.parametrize("kept", ["", "[]", "{", '{"key": 7}', '{"headers": 3}', '{"headers": [["a", {"base64": 1}]]}'])
def test_a_mangled_envelope_is_an_attribute_like_any_other(kept):
    event = CloudEvent({"specversion": "1.0", "id": "1", "source": "s", "type": "t", "redeliverymessage": kept})
    assert events.from_event(event).headers == (STRUCTURED,)


@pytest.mark.parametrize("moment", [*TIMES, "2024-01-31T12:00:00.000000Z", "2024-01-31T12:00:00.120+00:00"])
def test_an_event_shows_its_time_to_the_letter_in_either_mode(moment):
    structured = Message(value=EVENT.replace(b'"data"', f'"time":"{moment}","data"'.encode()), headers=(STRUCTURED,))
    for message in (structured, Message(value=b"{}", headers=(*BINARY, ("ce_time", moment.encode())))):
        form = json.loads(json.dumps(events.to_json(events.to_event(message))))
        assert form["time"] == moment
        assert events.from_event(events.from_json(form)) == message
        turned = events.reformat(events.reformat(message, "binary", "ce-"), "json", None)
        assert json.loads(turned.value)["time"] == moment


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ({"data": "é\n", "datacontenttype": "text/plain"}, {"data": "é\n"}),
        ({"data": "<a/>", "datacontenttype": "application/xml"}, {"data": "<a/>"}),
        ({"data": "hello"}, {"data": "hello"}),
        ({"data": {"a": [1, True, None]}}, {"data": {"a": [1, True, None]}}),
        ({"data_base64": "aGVsbG8="}, {"data_base64": "aGVsbG8="}),
        ({"flag": True, "n": -5, "text": "true"}, {"flag": True, "n": -5, "text": "true"}),
    ],
)
def test_a_structured_event_is_shown_as_it_is(form, shown):
    body = json.dumps({"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **form}).encode()
    message = Message(value=body, headers=(STRUCTURED,), key=b"k")
    event = events.to_json(events.to_event(message))
    assert {name: event.get(name) for name in shown} == shown
    assert events.from_event(events.from_json(json.loads(json.dumps(event)))) == message


@pytest.mark.parametrize(
    ("body", "kind", "shown"),
    [
        (b"hello", b"text/plain", {"data": "hello"}),
        (b"a,b", b"Text/CSV; charset=utf-8", {"data": "a,b"}),
        (b"\xff", b"text/plain; charset=latin-1", {"data_base64": "/w=="}),
        (b'{"a": 1}', None, {"data": {"a": 1}}),
        (b"\x89PNG", b"image/png", {"data_base64": "iVBORw=="}),
    ],
)
def test_a_binary_event_shows_text_as_text_and_json_as_json(body, kind, shown):
    headers = BINARY if kind is None else (*BINARY, ("content-type", kind))
    event = events.to_json(events.to_event(Message(value=body, headers=headers)))
    assert {name: event.get(name) for name in shown} == shown


@pytest.mark.parametrize("constant", [b"NaN", b"Infinity", b"-Infinity"])
def test_an_event_that_is_no_json_is_kept_as_a_raw_message_which_is(constant):
    message = Message(value=EVENT.replace(b"1}", constant + b"}"), headers=(STRUCTURED,))
    document = json.dumps(events.to_json(events.to_event(message)), allow_nan=False)
    assert events.from_event(events.from_json(json.loads(document))) == message


# --- content modes -------------------------------------------------------------------------------------------------


def test_a_binary_event_becomes_structured_to_the_letter():
    moment = ("ce_time", b"2024-01-31T12:00:00.123456789+01:00")
    content_type = ("Content-Type", b"application/json")
    message = Message(value=b'{"a": 1.50}', key=b"k", headers=(("u", b"1"), *BINARY, moment, content_type))
    out = events.reformat(message, "json", "ce_")
    assert out.headers == (("u", b"1"), STRUCTURED)
    assert out.key == b"k"
    assert json.loads(out.value) == {
        "specversion": "1.0",
        "id": "1",
        "source": "/s",
        "type": "t",
        "time": "2024-01-31T12:00:00.123456789+01:00",
        "datacontenttype": "application/json",
        "data": {"a": 1.5},
    }


@pytest.mark.parametrize("body", [b'{"a":0.12345678901234567890123}', b'{"a":1,"a":2}', b"NaN", b"null", b"\xff", b"{"])
def test_data_that_json_would_alter_goes_as_base64(body):
    message = Message(value=body, headers=(*BINARY, ("content-type", b"application/json")))
    form = json.loads(events.reformat(message, "json", None).value)
    assert base64.b64decode(form["data_base64"]) == body


def test_a_structured_event_becomes_headers_with_the_broker_s_prefix():
    body = EVENT.replace(b'"a":1', b'"a":"\xc3\xa9"').replace(b'"data"', b'"n":5,"time":"2024-01-31T12:00:00Z","data"')
    out = events.reformat(Message(value=body, headers=(("u", b"1"), STRUCTURED)), "binary", "ce-")
    assert out.value == '{"a":"é"}'.encode()
    assert out.headers == (
        ("u", b"1"),
        ("ce-specversion", b"1.0"),
        ("ce-id", b"1"),
        ("ce-source", b"/s"),
        ("ce-type", b"t"),
        ("ce-n", b"5"),
        ("ce-time", b"2024-01-31T12:00:00Z"),
        ("content-type", b"application/json"),
    )


@pytest.mark.parametrize("number", ["0.12345678901234567890123", "12345678901234567890.5", "-1E+400", "1e-400"])
def test_a_number_that_no_float_holds_is_never_rounded(number):
    data = json.dumps({"price": 0, "list": [0]}).replace("0", number)
    message = Message(value=EVENT.replace(b'{"a":1}', data.encode()), headers=(STRUCTURED,))
    became = events.reformat(message, "binary", "ce-"), dialects.renamed(message, "other")
    for body in (became[0].value, json.dumps(json.loads(became[1].value, parse_float=str)["data"]).encode()):
        assert {Decimal(each) for each in re.findall(r"-?[0-9][0-9.eE+-]*", body.decode())} == {Decimal(number)}


@pytest.mark.parametrize("number", ["1e99999999999999999999", "-1e-99999999999999999999"])
def test_a_number_that_not_even_a_decimal_holds_keeps_its_digits_as_text(number):
    message = Message(value=EVENT.replace(b"1}", number.encode() + b"}"), headers=(STRUCTURED,))
    assert events.reformat(message, "binary", "ce-").value == b'{"a":"%s"}' % number.encode()
    assert dialects.renamed(message, "other").value == message.value.replace(b'"t"', b'"other"')


def test_a_binary_event_changes_to_another_broker_s_prefix():
    message = Message(value=b"x", headers=(*BINARY, ("content-type", b"text/plain")))
    out = events.reformat(message, "binary", "cloudEvents_")
    assert out.value == b"x"
    assert {name for name, _ in out.headers if name != "content-type"} == {
        "cloudEvents_" + name for name in ("specversion", "id", "source", "type")
    }


@given(messages(), st.sampled_from(["json", "binary"]), st.sampled_from([None, "ce_", "ce-"]))
def test_a_change_of_mode_keeps_what_the_event_says_and_leaves_raw_messages_alone(message, mode, prefix):
    out = events.reformat(message, mode, prefix)
    before, after = events.to_event(message), events.to_event(out)
    if before.get_type() == events.WRAPPED:
        assert out == message
    else:
        assert (before.get_id(), before.get_source(), before.get_time()) == (
            after.get_id(),
            after.get_source(),
            after.get_time(),
        )
        assert events.reformat(out, mode, prefix) == out


# --- attributes ----------------------------------------------------------------------------------------------------

GOOD = {"id": "1", "source": "/s", "type": "t"}
#: From the CloudEvents specification and RFC 3986.
SOURCES = (
    "https://github.com/cloudevents",
    "mailto:cncf-wg-serverless@lists.cncf.io",
    "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66",
    "/cloudevents/spec/pull/123",
    "1-555-123-4567",
    "tel:+1-816-555-1212",
    "ldap://[2001:db8::7]/c=GB?objectClass?one",
    "//host:80/a%20b;c=1,2/(d)?e=/?f#g?h",
    "g;x=1/../y",
    "?q",
    "#f",
)
CONTENT_TYPES = ("text/plain", 'Text/X-a.b+c; charset = utf-8;d="e;\\"f"', "application/cloudevents+json;", "a/b ;c=d")


@pytest.mark.parametrize(
    "attributes",
    [
        GOOD,
        GOOD | {"subject": None, "time": "2024-01-31t12:00:00.5-23:59", "x9": 1, "y": True, "z": b"b"},
        GOOD | {"time": datetime(2024, 1, 1, tzinfo=UTC), "dataschema": "http://x", "specversion": "1.0"},
        *(GOOD | {"source": text} for text in SOURCES),
        *(GOOD | {"dataschema": text} for text in ("urn:a:b", "http://u@[::1]:80/a?b=c#/d", "mailto:a@b.c")),
        *(GOOD | {"datacontenttype": text} for text in CONTENT_TYPES),
    ],
)
def test_good_attributes_are_good(attributes):
    events.validate(attributes)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"id": None}, "missing-id"),
        ({"source": ""}, "missing-source"),
        ({"specversion": "0.3"}, "invalid-specversion"),
        ({"time": "2024-01-31"}, "invalid-time"),
        ({"time": "2024-02-31T00:00:00Z"}, "invalid-time"),
        ({"time": datetime(2024, 1, 1)}, "invalid-time"),  # noqa: DTZ001 - its fault is what is tested
        ({"subject": ""}, "invalid-subject"),
        ({"subject": "a\x00"}, "invalid-subject"),
        ({"subject": "\ud800"}, "invalid-subject"),
        ({"type": 5}, "invalid-type"),
        ({"ext": 1.5}, "invalid-ext"),
        ({"Upper": "x"}, "invalid-attribute-name"),
        ({"data": "x"}, "invalid-attribute-name"),
        ({"new\n": "x"}, "invalid-attribute-name"),
        *(({"source": text}, "invalid-source") for text in ("a b", "/é", "http://[::1", "%zz", ":x", "a#b#c", "1a:b")),
        *(({"dataschema": text}, "invalid-dataschema") for text in ("/relative", "x", "http://a b", "http://h:x/")),
        *(
            ({"datacontenttype": text}, "invalid-datacontenttype")
            for text in ("json", "text/", "/plain", "text/plain charset=x", "text/plain; charset", 'a/b; c="d')
        ),
    ],
)
def test_wrong_attributes_are_named_in_a_sentence(wrong, code):
    with pytest.raises(Permanent) as caught:
        events.validate(GOOD | wrong)
    assert caught.value.native_code == code
    assert len(str(caught.value)) > 20


def test_binary_headers_are_canonical_text():
    moment = datetime(2024, 1, 31, 12, 0, 0, 5, tzinfo=UTC)
    attributes = GOOD | {
        "time": moment,
        "n": 7,
        "b": False,
        "y": b"\x00",
        "datacontenttype": "text/plain",
        "none": None,
    }
    assert dict(events.binary_headers(attributes, "ce_")) == {
        "ce_specversion": b"1.0",
        "ce_id": b"1",
        "ce_source": b"/s",
        "ce_type": b"t",
        "ce_time": b"2024-01-31T12:00:00.000005Z",
        "ce_n": b"7",
        "ce_b": b"false",
        "ce_y": b"AA==",
        "content-type": b"text/plain",
    }


def test_what_is_no_uri_and_no_media_type_is_found_in_linear_time():
    for text in ("a" * 50_000 + " ", "%41" * 20_000 + "%", "http://" + "a@" * 30_000, "/" * 50_000 + "^"):
        begun = time.process_time()
        for name in ("source", "dataschema"):
            with pytest.raises(Permanent):
                events.validate(GOOD | {name: text})
        with pytest.raises(Permanent):
            events.validate(GOOD | {"datacontenttype": f'a/b{";c=d" * 10_000}{text}"'})
        assert time.process_time() - begun < 1


@given(st.text(max_size=30))
def test_the_event_of_an_undeliverable_row_has_a_source_that_is_a_uri_reference(source):
    message = events.undeliverable(b"x", id="1", error=Permanent("x"), source=source)
    form = json.loads(message.value)
    events.validate({name: form[name] for name in ("id", "source", "type")})


# --- rows ----------------------------------------------------------------------------------------------------------


def test_an_undeliverable_row_is_an_event_with_its_key_headers_and_reason():
    row = {
        "text": "é",
        "bytes": b"\x00",
        "money": Decimal("1.10"),
        "at": datetime(2024, 1, 1, tzinfo=UTC),
        "day": date(2024, 1, 1),
        "nan": float("nan"),
        "low": float("-inf"),
        "nested": [{"x": (1, None)}],
    }
    error = Permanent("no time; password=hunter2", code=Code.INVALID_MESSAGE, native_code="missing-time")
    headers = (("u", b"1"), ("content-type", b"text/csv"))
    message = events.undeliverable(row, id="row-1", error=error, key=b"k", headers=headers)
    assert (message.key, message.headers, message.id) == (b"k", (("u", b"1"), STRUCTURED), "row-1")
    assert json.loads(message.value) == {
        "specversion": "1.0",
        "type": "redelivery.undeliverable",
        "source": "redelivery",
        "id": "row-1",
        "code": "INVALID_MESSAGE",
        "nativecode": "missing-time",
        "reason": "no time; password=***",
        "rowcontenttype": "text/csv",
        "datacontenttype": "application/json",
        "data": {
            "text": "é",
            "bytes": "AA==",
            "money": "1.10",
            "at": "2024-01-01T00:00:00Z",
            "day": "2024-01-01",
            "nan": "NaN",
            "low": "-Infinity",
            "nested": [{"x": [1, None]}],
        },
    }


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.text(max_size=3), st.text(max_size=3) | st.binary(max_size=3) | st.floats(), max_size=3),
            st.text(max_size=4),
            st.sampled_from(["no 100%s", "no é\n", "no 100%s"]),
            st.none() | st.binary(max_size=3),
            st.sampled_from(
                [(), (("u", b"1"), ("u", None)), (("Content-Type", b"text/csv"),), (("content-type", b""),)]
            ),
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_many_undeliverable_rows_are_the_events_that_each_of_them_is_alone(rows, same):
    every, ids, reasons, keys, headers = (list(each) for each in zip(*rows, strict=True))
    errors = [Permanent(each, code=Code.INVALID_MESSAGE) for each in (reasons[:1] if same else reasons)]
    batch = events.undeliverable_all(
        [events.row_json(row) for row in every], ids=ids, errors=errors, keys=keys, headers=headers, source="a:é%s"
    )
    told = errors * len(rows) if same else errors
    assert list(batch.rows()) == [
        events.undeliverable(row, id=id_, error=error, key=key, headers=own, source="a:é%s")
        for row, id_, error, key, own in zip(every, ids, told, keys, headers, strict=True)
    ]
    assert batch.nbytes == sum(each.nbytes for each in batch.rows())


def test_an_undeliverable_row_of_bytes_is_base64_and_comes_out_again():
    message = events.undeliverable(b"\xff\x00", id="1", error=Permanent("x"))
    assert events.to_event(message).get_data() == b"\xff\x00"


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text() | st.binary() | st.floats() | st.integers()))
def test_any_row_id_and_reason_make_an_event(id_, reason, row):
    message = events.undeliverable(row, id=id_, error=Permanent(reason), source=reason)
    assert events.to_event(message).get_type() == events.UNDELIVERABLE


def test_half_a_character_in_the_data_of_an_event_does_not_keep_it_from_becoming_binary() -> None:
    for kind in ("application/json", "text/plain"):
        body = f'{{"specversion":"1.0","id":"i","source":"s","type":"t","datacontenttype":"{kind}","data":"\\ud800"}}'
        message = Message(value=body.encode(), headers=(("content-type", b"application/cloudevents+json"),))
        assert b"\xed\xa0\x80" in (events.reformat(message, "binary", "ce_").value or b"")
