"""Golden vectors: what each dialect writes, to the letter, and what is read of letters that others wrote."""

from __future__ import annotations

import base64
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from redelivery.codes import Code
from redelivery.contract.broker import Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import LetterDialect
from redelivery.errors import ContractViolation
from redelivery.formats import dialects
from redelivery.formats.dialects import _body
from redelivery.formats.events import reformat, to_event

CONTEXT = ErrorContext(
    reason="refused: too long",
    kind="permanent",
    native_code="413",
    exception="pika.exceptions.NackError",
    stacktrace="Traceback\n  line\nPermanent: refused: too long\n",
    stage="TASK_PUT",
    broker="embedded",
    component="embedded.sender.EmbeddedSender",
    destination="embedded:orders?queue=q",
    attempts=3,
    attempts_total=5,
    hops=1,
    last_failure_ms=1526518715403,
    run="nightly",
    partition=7,
    source_topic="orders",
    source_partition=2,
    source_offset=918264,
)
RAW = Message(value=b"payload", key=b"k", headers=(("user", b"1"),))
EVENT = b'{ "specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1.50} }\n'
STRUCTURED = Message(value=EVENT, headers=(("content-type", b"application/cloudevents+json"),))
BINARY = Message(
    value=b"x",
    headers=tuple((f"ce-{n}", b"1.0" if n == "specversion" else b"s") for n in ("specversion", "id", "source", "type")),
)
LOG = logging.getLogger("redelivery.dialects")
MESSAGES = {"raw": RAW, "structured": STRUCTURED, "binary": BINARY, "null": Message(value=None)}


@pytest.fixture(autouse=True, scope="module")
def _no_context_is_lost_to_an_error_of_ours():
    def fail(*_):
        raise  # noqa: PLE0704 - inside the handler that would swallow it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOG, "exception", fail)
        yield


def letter(message, dialect, context=CONTEXT, **more):
    return dialects.attach(message, context, dialect=dialect, **({"limits": Limits(), "prefix": "ce_"} | more))


def ours(message, before=RAW):
    """What was written, by name, apart from the marker."""
    return {n: v for n, v in message.headers if (n, v) not in before.headers and n != "redelivery-letter"}


def context_json(message):
    return json.loads(dict(message.headers)["redelivery-context"])


def test_connect_writes_its_ten_headers_as_utf8_text():
    written = ours(letter(RAW, "connect"))
    assert context_json(letter(RAW, "connect")) == {
        "redelivery": {
            "kind": "permanent",
            "native_code": "413",
            "broker": "embedded",
            "destination": "embedded:orders?queue=q",
            "attempts": 3,
            "last_failure_ms": 1526518715403,
        }
    }
    del written["redelivery-context"]
    assert written == {
        "__connect.errors.topic": b"orders",
        "__connect.errors.partition": b"2",
        "__connect.errors.offset": b"918264",
        "__connect.errors.connector.name": b"nightly",
        "__connect.errors.task.id": b"7",
        "__connect.errors.stage": b"TASK_PUT",
        "__connect.errors.class.name": b"embedded.sender.EmbeddedSender",
        "__connect.errors.exception.class.name": b"pika.exceptions.NackError",
        "__connect.errors.exception.message": b"refused: too long",
        "__connect.errors.exception.stacktrace": b"Traceback\n  line\nPermanent: refused: too long\n",
    }


def test_deadletter_writes_its_three_extensions_with_the_broker_s_prefix():
    written = ours(letter(RAW, "deadletter"))
    del written["redelivery-context"]
    assert written == {
        "ce_deadletterreason": b"refused: too long",
        "ce_deadletterretry": b"3",
        "ce_deadlettersubscriberuri": b"embedded:orders?queue=q",
    }


def test_deadletter_names_the_subscriber_where_there_is_one():
    context = ErrorContext(subscriber="http://u:hunter2@sub/", destination="x:y")
    assert dict(letter(RAW, "deadletter", context).headers)["ce_deadlettersubscriberuri"] == b"http://u:***@sub/"


def test_knativeerror_writes_destination_code_and_base64_data():
    written = ours(letter(RAW, "knativeerror"))
    del written["redelivery-context"]
    assert written == {
        "ce_knativeerrordest": b"embedded:orders?queue=q",
        "ce_knativeerrorcode": b"413",
        "ce_knativeerrordata": base64.b64encode(b"refused: too long"),
    }


@pytest.mark.parametrize(
    ("subscriber", "destination", "uri"),
    [
        ("billing", "x://h/orders?queue=q", "x://h/orders?queue=q#billing"),
        ("a b/ö#", "x:y", "x:y#a%20b%2F%C3%B6%23"),
        ("billing", "x:y#z", "x:y#billing"),
        ("billing", None, "#billing"),
        (None, "x:/a b\u00e9\n", "x:/a%20b%C3%A9%0A"),
        ("http://sub/", "x:y", "http://sub/"),
    ],
)
def test_the_subscriber_s_uri_is_one_and_names_the_subscription_in_its_fragment(subscriber, destination, uri):
    context = ErrorContext(subscriber=subscriber, destination=destination)
    out = letter(RAW, "deadletter", context)
    assert dict(out.headers)["ce_deadlettersubscriberuri"].decode() == uri
    assert dialects.read(out) == context


@pytest.mark.parametrize("reason", ["x" * 5000, "é" * 5000, "a" + "語" * 5000])
def test_knativeerrordata_is_cut_to_1024_characters_after_encoding_and_still_is_text(reason):
    out = letter(RAW, "knativeerror", ErrorContext(reason=reason))
    data = dict(out.headers)["ce_knativeerrordata"]
    assert 1016 <= len(data) <= 1024
    assert base64.b64decode(data, validate=True).decode().startswith(reason[:250])
    assert dialects.read(out).reason.startswith(reason[:2000])


@pytest.mark.parametrize(
    ("prefix", "name"), [(None, "deadletterretry"), ("cloudEvents:", "cloudEvents:deadletterretry")]
)
def test_a_raw_message_gets_extensions_with_the_prefix_there_is(prefix, name):
    assert dict(letter(RAW, "deadletter", prefix=prefix).headers)[name] == b"3"


def test_a_binary_event_keeps_its_own_prefix():
    assert dict(letter(BINARY, "deadletter", prefix="ce_").headers)["ce-deadletterretry"] == b"3"


def test_extensions_go_into_the_json_of_a_structured_event_and_nothing_else_of_it_changes():
    out = letter(STRUCTURED, "deadletter")
    assert out.value == EVENT.replace(
        b" }\n",
        b' ,"deadletterreason":"refused: too long","deadletterretry":3,'
        b'"deadlettersubscriberuri":"embedded:orders?queue=q"}\n',
    )
    assert not any(name.startswith("ce_") for name, _ in out.headers)
    assert dialects.strip(out).value == EVENT


def test_knativeerrorcode_is_a_number_where_it_is_one():
    assert json.loads(letter(STRUCTURED, "knativeerror").value)["knativeerrorcode"] == 413
    context = ErrorContext(native_code="NoRoute")
    assert json.loads(letter(STRUCTURED, "knativeerror", context).value)["knativeerrorcode"] == "NoRoute"


def test_json_writes_the_older_error_context_and_ours_beside_it():
    out = letter(RAW, "json")
    assert list(ours(out)) == ["redelivery-context"]
    assert context_json(out) == {
        "record": {
            "topic": "orders",
            "partition": 2,
            "offset": 918264,
            "timestamp_type": "NO_TIMESTAMP_TYPE",
            "source_partition": {"topic": "orders", "partition": "2"},
            "source_offset": {"offset": "918264"},
        },
        "index": 4,
        "stages": [
            {"type": "TRANSFORMATION"},
            {"type": "KEY_CONVERTER"},
            {"type": "VALUE_CONVERTER"},
            {"type": "HEADER_CONVERTER"},
            {"type": "TASK_PUT", "class": "embedded.sender.EmbeddedSender"},
        ],
        "exception": "Traceback\n  line\nPermanent: refused: too long\n",
        "attempt": 2,
        "task_id": "nightly-7",
        "time_of_error": 1526518715403,
        "redelivery": {
            "reason": "refused: too long",
            "kind": "permanent",
            "native_code": "413",
            "exception": "pika.exceptions.NackError",
            "stage": "TASK_PUT",
            "broker": "embedded",
            "component": "embedded.sender.EmbeddedSender",
            "destination": "embedded:orders?queue=q",
            "attempts": 3,
            "attempts_total": 5,
            "hops": 1,
            "last_failure_ms": 1526518715403,
            "run": "nightly",
            "partition": 7,
            "source_topic": "orders",
            "source_partition": 2,
            "source_offset": 918264,
        },
    }


def test_json_writes_the_record_only_where_asked_and_settings_redacted():
    message = Message(value=b'{"a: 10}', key=None, headers=(("h", b"\xff"), ("n", None)), timestamp_ms=1526518349968)
    assert b"object" not in dict(letter(message, "json").headers)["redelivery-context"]
    out = letter(message, "json", include_message=True, configs={"user": "u", "sasl.password": "hunter2"})
    form = context_json(out)
    assert form["record"] == {
        "topic": "orders",
        "partition": 2,
        "offset": 918264,
        "timestamp": 1526518349968,
        "timestamp_type": "CREATE_TIME",
        "source_partition": {"topic": "orders", "partition": "2"},
        "source_offset": {"offset": "918264"},
        "key": {"schema": "BYTES", "object": None},
        "value": {"schema": "BYTES", "object": "eyJhOiAxMH0="},
        "headers": {"schema": "ARRAY", "object": '[["h", "/w=="], ["n", null]]'},
    }
    assert form["stages"][4]["config"] == {"user": "u", "sasl.password": "***"}
    assert dialects.read(out) == CONTEXT


@pytest.mark.parametrize("dialect", dialects.NAMES)
@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_the_marker_lists_what_was_written_and_only_lives_survive_it(dialect, message):
    out = letter(message, dialect)
    mark = json.loads(dict(out.headers)["redelivery-letter"])
    assert (mark["dialect"], mark["attempts_total"], mark["hops"]) == (dialect, 5, 1)
    assert set(mark["headers"]) == set(ours(out, message))
    stripped = dialects.strip(out)
    assert stripped.headers == (*message.headers, ("redelivery-letter", b'{"attempts_total":5,"hops":1}'))
    assert (stripped.value, stripped.key) == (message.value, message.key)
    assert dialects.history(stripped) == dialects.history(out) == dialects.DeliveryHistory(5, 1)
    assert dialects.read(stripped) is None


def test_redriven_is_stripped_and_one_hop_further():
    out = dialects.redriven(letter(RAW, "json"))
    assert dialects.history(out) == dialects.DeliveryHistory(5, 2)
    assert dialects.read(out) is None
    assert dialects.history(dialects.redriven(RAW)) == dialects.DeliveryHistory(0, 1)


def test_an_unknown_dialect_is_the_plugin_s_fault():
    with pytest.raises(ContractViolation, match="no header dialect 'smoke'; there are: connect, deadletter"):
        letter(RAW, "smoke")


# --- several dialects ----------------------------------------------------------------------------------------------

KNATIVE = ("json", "knativeerror", "deadletter")
IN_BODY = (
    b',"knativeerrorcode":413,"knativeerrordata":"cmVmdXNlZDogdG9vIGxvbmc=",'
    b'"knativeerrordest":"embedded:orders?queue=q","deadletterreason":"refused: too long","deadletterretry":3,'
    b'"deadlettersubscriberuri":"embedded:orders?queue=q"'
)


def test_several_dialects_are_written_beside_each_other_into_a_structured_event() -> None:
    out = letter(STRUCTURED, KNATIVE)
    assert out.value == EVENT.replace(b" }\n", b" " + IN_BODY + b"}\n")
    alone, beside = context_json(letter(STRUCTURED, "json")), context_json(out)
    assert beside["redelivery"].pop("subscriber") is None  # so that the URI is not taken for a subscription's name
    assert beside == alone
    assert dialects.read(out) == CONTEXT
    assert dialects.strip(out).value == EVENT


def test_several_dialects_are_written_beside_each_other_into_a_binary_event() -> None:
    out = letter(BINARY, ("connect", "knativeerror", "deadletter"), prefix="ce_")
    written = ours(out, BINARY)
    assert written["__connect.errors.exception.message"] == b"refused: too long"
    assert written["ce-knativeerrorcode"] == b"413"
    assert written["ce-deadletterretry"] == b"3"
    assert json.loads(dict(out.headers)["redelivery-letter"])["dialect"] == "connect,knativeerror,deadletter"
    assert dialects.read(out) == CONTEXT
    assert dialects.strip(out).headers[:-1] == BINARY.headers


def test_an_event_gets_knative_s_attributes_beside_the_sink_s_own_dialect_unless_others_are_asked_for() -> None:
    assert dialects.chosen(None, "json", STRUCTURED) == KNATIVE
    assert dialects.chosen(None, "connect", BINARY) == ("connect", "knativeerror", "deadletter")
    assert dialects.chosen(None, "json", RAW) == ("json",)
    assert dialects.chosen(("knative", "connect"), "json", RAW) == ("knativeerror", "deadletter", "connect")
    assert dialects.chosen(("json", "json"), "connect", BINARY) == ("json",)


def test_every_dialect_can_be_asked_for() -> None:
    assert set(get_args(LetterDialect)) == {*dialects.NAMES, "knative"}


@pytest.mark.parametrize("taken", ["knativeerrorcode", "deadletterreason"])
def test_of_several_dialects_too_each_name_is_written_only_if_absent(taken: str) -> None:
    body = EVENT.replace(b'"type"', b'"' + taken.encode() + b'":"mine","type"')
    message = Message(value=body, headers=STRUCTURED.headers)
    out = letter(message, KNATIVE)
    assert json.loads(out.value)[taken] == "mine"
    assert dialects.read(out) == CONTEXT
    assert dialects.strip(out).value == body


def test_a_letter_of_one_dialect_that_dies_again_is_written_in_others() -> None:
    again = letter(letter(STRUCTURED, KNATIVE), ("connect",))
    assert again.value == EVENT
    assert again == letter(STRUCTURED, "connect")


@pytest.mark.parametrize("dialect", ["connect", ("deadletter", "connect")])
def test_the_record_and_the_settings_are_written_beside_any_dialect(dialect) -> None:
    out = letter(RAW, dialect, include_message=True, configs={"user": "u", "sasl.password": "hunter2"})
    form = context_json(out)
    assert form["record"]["value"] == {"schema": "BYTES", "object": base64.b64encode(b"payload").decode()}
    assert form["stages"][form["index"]]["config"] == {"user": "u", "sasl.password": "***"}
    assert dialects.read(out) == CONTEXT
    assert dialects.strip(out).headers[:-1] == RAW.headers


# --- the user's own headers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["__connect.errors.stage", "__connect.errors.exception.message", "redelivery-context"])
def test_a_user_s_header_of_the_same_name_is_neither_overwritten_nor_removed(name):
    message = Message(value=b"x", headers=((name, b"mine"), (name, b"twice")))
    out = letter(message, "connect")
    assert out.headers[:2] == message.headers
    assert sum(each == name for each, _ in out.headers) == (2 if name == "redelivery-context" else 3)
    assert dialects.read(out) == CONTEXT
    assert dialects.strip(out).headers[:-1] == message.headers


#: A letter of Connect's, as it may die a second time.
CONNECTS = (
    ("mine", b"1"),
    ("__connect.errors.exception.message", b"old"),
    ("__connect.errors.topic", b"old-topic"),
    ("mine", b"2"),
    ("__connect.errors.exception.message", None),
)


def last(message, name):
    """As Connect's readers take it."""
    return [value for each, value in message.headers if each == name][-1]


@pytest.mark.parametrize("repeated", [True, False])
def test_a_letter_of_connect_s_that_dies_again_shows_the_new_reason_to_everybody(repeated):
    message = Message(value=b"x", headers=CONNECTS)
    context = ErrorContext(reason="new", source_topic="new-topic", stage="TASK_PUT")
    out = dialects.attach(message, context, dialect="connect", limits=Limits(repeated_headers=repeated), prefix=None)
    assert last(out, "__connect.errors.exception.message") == b"new"
    assert last(out, "__connect.errors.topic") == b"new-topic"
    names = [name for name, _ in out.headers if name != "mine"]
    assert repeated or len(names) == len(set(names))
    assert dialects.read(out) == context
    for restored in (dialects.strip(out), dialects.strip(dialects.attach(out, context, **AGAIN))):
        assert restored == message
    assert dialects.redriven(out).headers[:-1] == CONNECTS
    for again in (dialects.redriven_all(Batch.of([out] * 5)), Batch.of([dialects.redriven(out)] * 5)):
        assert [each.headers[:-1] for each in again.rows()] == [CONNECTS] * 5


AGAIN = {"dialect": "connect", "limits": Limits(), "prefix": None}


def test_what_another_program_adds_to_our_letter_stays_there():
    """Connect has read it, and given it up once more."""
    out = letter(Message(value=b"x", headers=CONNECTS), "connect")
    theirs = (("__connect.errors.exception.message", b"newest"), ("__connect.errors.stage", b"TASK_PUT"))
    seen = replace(out, headers=out.headers + theirs)
    assert dialects.read(seen) == CONTEXT
    assert dialects.strip(seen).headers[: len(CONNECTS)] == CONNECTS
    assert dialects.strip(seen).headers[-2:] == theirs


def test_headers_that_do_not_fit_into_the_marker_leave_ours_out():
    """The broker takes each name once, and a marker of this size not at all."""
    old = ("__connect.errors.exception.message", b"x" * 1000)
    limits = Limits(repeated_headers=False, header_value_bytes=600)
    out = dialects.attach(Message(value=b"x", headers=(old,)), CONTEXT, dialect="connect", limits=limits, prefix=None)
    assert old in out.headers
    assert dialects.read(out).kind == CONTEXT.kind
    assert dialects.strip(out).headers[:-1] == (old,)


def test_an_event_s_own_extension_of_the_same_name_is_neither_overwritten_nor_removed():
    body = EVENT.replace(b'"type"', b'"deadletterreason":"mine","type"')
    message = Message(value=body, headers=STRUCTURED.headers)
    out = letter(message, "deadletter")
    assert json.loads(out.value)["deadletterreason"] == "mine"
    assert dialects.read(out) == CONTEXT
    assert dialects.strip(out).value == body


@pytest.mark.parametrize("value", [b"mine", b"{}", b"[]", b'{"name":"x"}', None, b"\xff"])
def test_a_user_s_header_with_the_marker_s_name_stays_and_the_marker_takes_another(value):
    message = Message(value=b"x", headers=(("redelivery-letter", value),))
    out = letter(message, "json")
    assert out.headers[0] == ("redelivery-letter", value)
    assert out.headers[-1][0] == "redelivery-letter-2"
    assert dialects.read(out) == CONTEXT
    assert dialects.strip(out).headers[0] == ("redelivery-letter", value)


def test_a_forged_marker_removes_no_header_that_no_dialect_writes():
    marker = {"dialect": "json", "headers": ["user", "content-type", "redelivery-letter"], "attributes": ["id", "data"]}
    forged = Message(
        value=EVENT, headers=(*STRUCTURED.headers, ("user", b"1"), ("redelivery-letter", json.dumps(marker).encode()))
    )
    stripped = dialects.strip(forged)
    assert stripped.value == EVENT
    assert stripped.headers[:2] == forged.headers[:2]


def test_a_user_s_header_is_not_taken_for_what_we_wrote():
    message = Message(value=b"x", headers=(("__connect.errors.topic", b"mine"), ("ce_deadletterretry", b"9")))
    context = ErrorContext(reason="no")
    for dialect in ("connect", "deadletter"):
        assert dialects.read(letter(message, dialect, context)) == ErrorContext(reason="no")


# --- letters that were changed, and others' letters ----------------------------------------------------------------


def test_a_letter_whose_body_was_mended_still_loses_our_extensions():
    out = letter(STRUCTURED, "deadletter")
    mended = json.loads(out.value) | {"data": {"a": 2}}
    stripped = dialects.strip(Message(value=json.dumps(mended).encode(), headers=out.headers))
    assert json.loads(stripped.value) == json.loads(EVENT) | {"data": {"a": 2}}


def test_nothing_is_cut_out_of_a_changed_body_but_our_extensions():
    body = b'{"id":"1","data":{"a":1},"x":2}'
    where = _body.Inserted(body.index(b',"x"'), len(b',"x":2'))
    assert _body.remove(body, ["deadletterretry"], where) == body


@pytest.mark.parametrize("mode", ["json", "binary"])
@pytest.mark.parametrize("message", [STRUCTURED, BINARY])
def test_a_letter_whose_content_mode_changed_still_loses_our_extensions(message, mode):
    changed = dialects.strip(reformat(letter(message, "deadletter"), mode, "ce_"))
    assert b"deadletter" not in (changed.value or b"")
    assert not any("deadletter" in name for name, _ in changed.headers)


def test_connect_s_own_letters_are_read():
    theirs = {
        "__connect.errors.topic": b"t",
        "__connect.errors.partition": b"0",
        "__connect.errors.offset": b"12",
        "__connect.errors.connector.name": b"sink-1",
        "__connect.errors.task.id": b"3",
        "__connect.errors.stage": b"VALUE_CONVERTER",
        "__connect.errors.class.name": b"org.apache.kafka.connect.json.JsonConverter",
        "__connect.errors.exception.class.name": b"org.apache.kafka.connect.errors.DataException",
        "__connect.errors.exception.message": b"bad json",
        "__connect.errors.exception.stacktrace": b"at org...",
    }
    assert dialects.read(Message(value=b"x", headers=tuple(theirs.items()))) == ErrorContext(
        reason="bad json",
        exception="org.apache.kafka.connect.errors.DataException",
        stacktrace="at org...",
        stage="VALUE_CONVERTER",
        run="sink-1",
        partition=3,
        source_topic="t",
        source_partition=0,
        source_offset=12,
        component="org.apache.kafka.connect.json.JsonConverter",
    )


def test_the_record_of_a_row_tells_where_the_row_was() -> None:
    context = ErrorContext(run="r", query="q", batch="3", partition=7, position=41)
    record = context_json(letter(Message(value=b"x"), "json", context))["record"]
    assert record == {
        "timestamp_type": "NO_TIMESTAMP_TYPE",
        "source_partition": {"run": "r", "query": "q", "batch": "3", "partition": "7"},
        "source_offset": {"position": "41"},
    }


@pytest.mark.parametrize(
    ("told", "timestamp_ms", "written"),
    [
        (None, None, "NO_TIMESTAMP_TYPE"),
        (None, 5, "CREATE_TIME"),
        ("LOG_APPEND_TIME", 5, "LOG_APPEND_TIME"),
    ],
)
def test_the_record_tells_whose_time_its_timestamp_is(told, timestamp_ms, written) -> None:
    context = ErrorContext(source_topic="t", source_timestamp_type=told)
    record = context_json(letter(Message(value=b"x", timestamp_ms=timestamp_ms), "json", context))["record"]
    assert record["timestamp_type"] == written


def test_a_class_name_of_an_older_letter_of_ours_is_the_plugin_s() -> None:
    found = dialects.read(Message(value=b"", headers=(("__connect.errors.class.name", b"kafka"),)))
    assert found == ErrorContext(broker="kafka")


def test_knative_s_own_letters_are_read_in_both_content_modes():
    body = (
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","knativeerrordest":"http://d","knativeerrorcode":500,'
    )
    structured = Message(value=body + b'"knativeerrordata":"aGVsbG8="}', headers=STRUCTURED.headers)
    headers = (
        ("ce_knativeerrordest", b"http://d"),
        ("ce_knativeerrorcode", b"500"),
        ("ce_knativeerrordata", b"aGVsbG8="),
    )
    for message in (structured, Message(value=None, headers=headers)):
        assert dialects.read(message) == ErrorContext(destination="http://d", native_code="500", reason="hello")


OLD_LETTERS = json.loads((Path(__file__).parent / "vectors/letters_without_native_code.json").read_text("utf-8"))


@pytest.mark.parametrize("old", OLD_LETTERS, ids=[f"{each['dialect']}-{each['code']}" for each in OLD_LETTERS])
def test_letters_from_before_the_vocabulary_are_read(old):
    """Their `code` was the client's own word. One that the vocabulary has means the same."""
    headers = tuple((name, value.encode()) for name, value in old["headers"])
    found = dialects.read(Message(value=old["value"].encode(), headers=headers))
    expected = (Code.TOO_LARGE, None) if old["code"] == "TOO_LARGE" else (None, old["code"])
    assert (found.code, found.native_code) == expected
    assert (found.reason, found.kind) == ("refused", "permanent")


def test_the_designs_extensions_are_read():
    headers = (
        ("ce-deadlettersubscriberuri", b"http://s"),
        ("ce-deadletterreason", b"no"),
        ("ce-deadletterretry", b"4"),
    )
    assert dialects.read(Message(value=None, headers=headers)) == ErrorContext(
        subscriber="http://s", reason="no", attempts=4
    )


def test_an_error_of_ours_never_holds_a_letter_back(caplog):
    broken = Message(value=b"x", headers=(("user", 7),))  # no bytes: nothing that a plugin may hand over
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOG, "exception", LOG.warning)
        assert letter(broken, "json") is broken
    assert "the letter goes without it" in caplog.text


@pytest.mark.parametrize("message", [STRUCTURED, BINARY], ids=["structured", "binary"])
def test_an_event_under_another_type_comes_back_to_the_byte(message) -> None:
    out = letter(message, KNATIVE, rename_type="dead.\u00e9")
    assert to_event(out).get_type() == "dead.\u00e9"
    assert dialects.read(out) == CONTEXT
    stripped = dialects.strip(out)
    assert (stripped.value, stripped.headers[:-1]) == (message.value, message.headers)
    assert b"retyped" not in dict(stripped.headers)["redelivery-letter"]
    again = letter(out, "json", rename_type="dead again")
    assert to_event(again).get_type() == "dead again"
    assert dialects.strip(again) == stripped


def test_a_type_is_kept_where_it_is_asked_for_and_comes_back_later() -> None:
    kept = dialects.strip(letter(STRUCTURED, KNATIVE, rename_type="dead"), keep_type=True)
    assert kept.value == EVENT.replace(b'"t"', b'"dead"')
    assert dialects.read(kept) is None
    assert dialects.redriven(kept).value == EVENT
    assert dialects.history(dialects.redriven(kept)).hops == 2


@pytest.mark.parametrize(
    "body",
    [
        b'\xef\xbb\xbf{"specversion":"1.0","id":"1","source":"s","type":"t"}',
        b'{"specversion":"1.0","type":"a","id":"1","source":"s","type":"t"}',
        b'{ "type" : "\\u0074\\/", "data":{"type":"no","x":1e400},"specversion":"1.0","id":"1","source":"s" }',
        '{"id":"ä€","specversion":"1.0","source":"s","data":"\\ud800","type":"\u00fc"}'.encode(),
    ],
)
def test_an_oddly_written_type_comes_back_as_it_was_written(body) -> None:
    message = Message(value=body, headers=STRUCTURED.headers)
    assert dialects.strip(letter(message, KNATIVE, rename_type="dead")).value == body


def test_a_type_that_somebody_has_mended_since_stays() -> None:
    out = letter(STRUCTURED, "json", rename_type="dead")
    mended = replace(out, value=out.value.replace(b'"dead"', b'"mended"'))
    assert dialects.strip(mended).value == EVENT.replace(b'"t"', b'"mended"')
    longer = replace(out, value=out.value.replace(b'"1"', b'"12345"'))
    assert dialects.strip(longer).value == EVENT.replace(b'"1"', b'"12345"')


@pytest.mark.parametrize("mode", ["json", "binary"])
@pytest.mark.parametrize("message", [STRUCTURED, BINARY], ids=["structured", "binary"])
def test_a_type_comes_back_whatever_the_content_mode_since(message, mode) -> None:
    changed = reformat(letter(message, "json", rename_type="dead"), mode, "ce_")
    assert to_event(dialects.strip(changed)).get_type() == to_event(message).get_type()


def test_an_event_keeps_its_type_where_there_is_no_room_to_say_what_it_was() -> None:
    message = replace(STRUCTURED, value=EVENT.replace(b'"t"', b'"' + b"t" * 900 + b'"'))
    for room in (2_500, 500):
        out = letter(message, "json", rename_type="dead", limits=Limits(header_value_bytes=room))
        assert (to_event(out).get_type() == "dead") is (room > 900)
        assert dialects.strip(out).value == message.value


def test_a_message_that_is_no_event_has_no_type_to_rename() -> None:
    assert letter(RAW, "json", rename_type="dead") == letter(RAW, "json")
