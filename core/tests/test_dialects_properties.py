"""What holds for every context, every message and every limit, in every dialect."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import fields, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from redelivery.base.urls import redact
from redelivery.codes import Code
from redelivery.contract.broker import Limits
from redelivery.contract.context import LAST_MS, STAGES, ErrorContext
from redelivery.contract.message import Message
from redelivery.formats import dialects
from redelivery.formats.dialects._fields import REASON_BYTES, STACKTRACE_BYTES, head, tail

LOG = logging.getLogger("redelivery.dialects")
STRUCTURED = ("content-type", b"application/cloudevents+json")
MARKERS = ("redelivery-letter", "redelivery-letter-2")
NO_LIMITS = Limits()

anything = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
numbers = st.integers(-(2**31), 2**62)
counts = st.integers(0, 2**31 - 1)
special = {
    "stage": st.none() | st.sampled_from(STAGES),
    "truncated": st.booleans(),
    "maybe_delivered": st.booleans(),
    "hops": counts,
    "attempts": st.none() | counts,
    "attempts_total": st.none() | counts,
    "partition": st.none() | counts,
    "first_failure_ms": st.none() | st.integers(0, LAST_MS),
    "last_failure_ms": st.none() | st.integers(0, LAST_MS),
    "extra": st.dictionaries(anything, anything, max_size=3),
    "reason": anything,
    "kind": anything,
    "code": st.none() | st.sampled_from(Code),
}


def a_field(name, kind):
    if name in special:
        return special[name]
    return st.none() | (numbers if kind.startswith("int") else anything)


contexts = st.builds(ErrorContext, **{item.name: a_field(item.name, str(item.type)) for item in fields(ErrorContext)})
names = st.text(max_size=6) | st.sampled_from(
    [
        "__connect.errors.stage",
        "__connect.errors.exception.message",
        "__connect.errors.topic",
        "ce_deadletterretry",
        "deadletterreason",
        "redelivery-context",
        *MARKERS,
    ]
)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=9)), max_size=4).map(tuple)
extensions = st.dictionaries(
    st.sampled_from(["deadletterreason", "knativeerrorcode", "other"]), st.text(max_size=4) | st.integers(), max_size=2
)
event_bodies = st.builds(
    lambda more, indent, end: (
        json.dumps({"specversion": "1.0", "id": "1", "source": "s", "type": "t", **more}, indent=indent).encode() + end
    ),
    extensions,
    st.sampled_from([None, 1]),
    st.sampled_from([b"", b"\r\n \t"]),
)
raw = st.builds(
    Message, value=st.none() | st.binary(max_size=20), key=st.none() | st.binary(max_size=5), headers=headers
)
structured = st.builds(
    lambda message, body: replace(message, value=body, headers=(*message.headers, STRUCTURED)), raw, event_bodies
)
binary = raw.map(
    lambda message: replace(
        message,
        headers=(*message.headers, *((f"ce-{n}", b"1.0") for n in ("specversion", "id", "source", "type"))),
    )
)
messages = raw | structured | binary
sizes = st.none() | st.integers(0, 1500)
limits = st.builds(
    Limits,
    message_bytes=sizes,
    headers_bytes=sizes,
    header_value_bytes=sizes,
    header_count=st.none() | st.integers(0, 14),
    repeated_headers=st.booleans(),
)
any_dialect = st.sampled_from(dialects.NAMES) | st.lists(st.sampled_from(dialects.NAMES), min_size=1, unique=True).map(
    tuple
)
ALL = [*dialects.NAMES, ("json", "knativeerror", "deadletter"), ("deadletter", "connect")]
prefixes = st.sampled_from([None, "ce_", "ce-", "cloudEvents_", "cloudEvents:"])


@pytest.fixture(autouse=True, scope="module")
def _no_context_is_lost_to_an_error_of_ours():
    def fail(*_):
        raise  # noqa: PLE0704 - inside the handler that would swallow it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LOG, "exception", fail)
        yield


def safe(text):
    """What is promised of a text: no secrets, no lone surrogates."""
    return None if text is None else "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def kept(context):
    changes = {}
    for item in fields(ErrorContext):
        value = getattr(context, item.name)
        if isinstance(value, str):
            changes[item.name] = safe(value)
    changes["extra"] = {safe(name): safe(value) for name, value in context.extra.items()}
    changes["stacktrace"] = safe(context.stacktrace) or None
    return replace(context, **changes)


def bare(message):
    return replace(
        message, headers=tuple(h for h in message.headers if not (h[0] in MARKERS and h[1] and h[1][:2] == b'{"'))
    )


@given(messages, contexts, any_dialect, prefixes, st.booleans())
def test_every_dialect_gives_back_the_whole_context(message, context, dialect, prefix, repeated):
    limit = Limits(repeated_headers=repeated)
    letter = dialects.attach(message, context, dialect=dialect, limits=limit, prefix=prefix)
    if {name for name, _ in message.headers} >= set(MARKERS):
        assert letter == message
        return
    found, wanted = dialects.read(letter), kept(context)
    if wanted.attempts_total is None:
        assert dialects.history(letter).attempts_total == (wanted.attempts or 0)
    assert found == wanted


@given(messages, contexts, any_dialect, prefixes, limits, st.none() | st.text(min_size=1, max_size=4))
def test_strip_gives_back_the_message_whatever_the_limits(message, context, dialect, prefix, limit, rename_type):
    options = {"dialect": dialect, "limits": limit, "prefix": prefix, "rename_type": rename_type}
    letter = dialects.attach(message, context, **options)
    stripped = dialects.strip(letter)
    assert bare(stripped) == message
    if limit.repeated_headers:
        assert [name for name, _ in letter.headers[: len(message.headers)]] == [name for name, _ in message.headers]
        assert rename_type or letter.headers[: len(message.headers)] == message.headers
    assert dialects.history(stripped) == dialects.history(letter)
    assert dialects.strip(stripped) == stripped


def within(letter, message, limit):
    in_headers = sum(len(name.encode()) + len(value or b"") for name, value in letter.headers)
    ours = letter.headers[len(message.headers) :]
    return (
        (limit.header_count is None or len(letter.headers) <= limit.header_count)
        and (limit.headers_bytes is None or in_headers <= limit.headers_bytes)
        and (limit.header_value_bytes is None or all(len(v) <= limit.header_value_bytes for _, v in ours))
        and (
            limit.message_bytes is None
            or in_headers + len(letter.value or b"") + len(letter.key or b"") <= limit.message_bytes
        )
    )


long_context = ErrorContext(
    reason="bad " * 500,
    kind="permanent",
    native_code="E",
    exception="X",
    stacktrace="frame\n" * 5000,
    attempts=3,
    attempts_total=4,
)


@given(messages, contexts, any_dialect, prefixes, limits)
def test_no_name_of_ours_is_there_twice_where_names_do_not_repeat(message, context, dialect, prefix, limit):
    once = replace(limit, repeated_headers=False)
    letter = dialects.attach(message, context, dialect=dialect, limits=once, prefix=prefix)
    names = [name for name, _ in letter.headers]
    before = [name for name, _ in message.headers]
    assert all(names.count(name) <= max(1, before.count(name)) for name in names)


@given(messages, contexts, prefixes)
def test_connect_s_headers_are_the_last_of_their_names_unless_limits_leave_no_room(message, context, prefix):
    letter = dialects.attach(message, context, dialect="connect", limits=NO_LIMITS, prefix=prefix)
    for name, value in dict(
        dialects.attach(Message(value=b""), context, dialect="connect", limits=NO_LIMITS, prefix=None).headers
    ).items():
        if name.startswith("__connect.") and letter != message:
            assert dict(letter.headers)[name] == value


@given(messages, contexts | st.just(long_context), any_dialect, prefixes, limits)
def test_limits_are_respected_and_the_message_is_never_held_back(message, context, dialect, prefix, limit):
    letter = dialects.attach(message, context, dialect=dialect, limits=limit, prefix=prefix)
    assert letter == message or within(letter, message, limit)


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("kind", ["message_bytes", "headers_bytes", "header_value_bytes"])
def test_less_room_keeps_what_matters_most_and_marks_the_cut(dialect, kind):
    message = Message(value=b"x" * 10, headers=(("user", b"1"),))
    before = len(dialects.attach(message, long_context, dialect=dialect, limits=NO_LIMITS, prefix="ce_").headers)
    assert before > 2
    seen = []
    for room in (60_000, 12_000, 4_000, 1_200, 500):
        letter = dialects.attach(message, long_context, dialect=dialect, limits=Limits(**{kind: room}), prefix="ce_")
        found = dialects.read(letter)
        assert found.attempts_total == 4
        seen.append((len(found.stacktrace or ""), len(found.reason), found.truncated))
    assert seen == sorted(seen, key=lambda each: (-each[0], -each[1]))
    assert seen[0] == (len(long_context.stacktrace), len(long_context.reason), False)
    assert 1000 < seen[1][0] < 12_000  # the trace goes first, and uses the room there is
    assert seen[1][1] == seen[0][1]
    assert 100 < seen[3][1] < seen[0][1]  # then the text
    assert all(cut for _, _, cut in seen[1:])


@pytest.mark.parametrize("dialect", ALL)
@pytest.mark.parametrize("room", range(12))
def test_few_headers_still_hold_the_whole_context(dialect, room):
    context = replace(long_context, stacktrace="trace", source_topic="t", source_offset=1, run="r", partition=1)
    letter = dialects.attach(
        Message(value=b"x"), context, dialect=dialect, limits=Limits(header_count=room), prefix="ce_"
    )
    assert len(letter.headers) <= room
    if room >= 2:
        assert dialects.read(letter) == context
    elif room == 1:
        assert dialects.read(letter) == ErrorContext(attempts_total=4, truncated=True)


@pytest.mark.parametrize("dialect", ALL)
def test_where_a_header_holds_little_the_kind_and_code_still_fit(dialect):
    letter = dialects.attach(
        Message(value=b"x"), long_context, dialect=dialect, limits=Limits(header_value_bytes=500), prefix="ce_"
    )
    small = dialects.attach(
        Message(value=b"x"), long_context, dialect="connect", limits=Limits(header_value_bytes=200), prefix=None
    )
    for found in (dialects.read(letter), dialects.read(small)):
        assert (found.kind, found.native_code, found.attempts_total, found.truncated) == ("permanent", "E", 4, True)


@pytest.mark.parametrize("dialect", ALL)
def test_a_record_or_settings_that_do_not_fit_go_before_the_stack_trace(dialect):
    message = Message(value=b"x" * 3000)
    context = replace(long_context, stacktrace="trace " * 100)
    limit = Limits(header_value_bytes=3500)
    letter = dialects.attach(message, context, dialect=dialect, limits=limit, prefix="ce_", include_message=True)
    assert dialects.read(letter) == replace(context, truncated=True)
    configs, context = {"x": "y" * 4000}, replace(context, stage="TASK_PUT")
    letter = dialects.attach(message, context, dialect=dialect, limits=limit, prefix="ce_", configs=configs)
    assert dialects.read(letter) == replace(context, truncated=True)


@pytest.mark.parametrize("dialect", ALL)
def test_a_stack_trace_without_end_is_cut_where_the_broker_has_no_limit(dialect):
    context = replace(long_context, stacktrace="frame\n" * 100_000 + "Error: last line", reason="é" * 100_000)
    began = time.process_time()
    letter = dialects.attach(Message(value=b"x"), context, dialect=dialect, limits=NO_LIMITS, prefix=None)
    assert time.process_time() - began < 5
    found = dialects.read(letter)
    assert len(found.stacktrace.encode()) <= STACKTRACE_BYTES
    assert found.stacktrace.endswith("Error: last line")
    assert len(found.reason.encode()) <= REASON_BYTES
    assert found.truncated


@given(messages, contexts, any_dialect, any_dialect, limits)
def test_a_letter_that_dies_again_and_again_does_not_grow(message, context, first, then, limit):
    once = dialects.attach(message, context, dialect=then, limits=limit, prefix="ce_")
    letter = dialects.attach(message, context, dialect=first, limits=limit, prefix="ce_")
    for _ in range(3):
        letter = dialects.attach(letter, context, dialect=then, limits=limit, prefix="ce_")
    assert letter.value == once.value
    assert len(letter.headers) <= max(len(once.headers), len(message.headers) + 1)
    assert abs(letter.nbytes - once.nbytes) <= 200


@given(st.lists(st.integers(1, 9), max_size=5))
def test_attempts_add_up_over_all_lives(attempts):
    message = Message(value=b"x")
    for count in attempts:
        context = ErrorContext(attempts=count, attempts_total=dialects.history(message).attempts_total + count)
        message = dialects.redriven(dialects.attach(message, context, dialect="json", limits=NO_LIMITS, prefix=None))
    assert dialects.history(message) == dialects.DeliveryHistory(sum(attempts), len(attempts))
    assert len(message.headers) <= 1


@pytest.mark.parametrize("dialect", ALL)
def test_a_context_that_is_cut_says_where_its_letter_goes_back_to_as_long_as_it_names_its_write(dialect):
    """Else a redrive would send it to the destination itself, whose rows it is none of."""
    context = ErrorContext(
        reason="r" * 500,
        kind="permanent",
        component="c" * 200,
        destination="x://host/orders",
        target="orders-late",
        run="run-1",
        extra={"a": "b" * 400},
    )
    letters = (
        dialects.attach(Message(value=b"v"), context, dialect=dialect, limits=Limits(headers_bytes=most), prefix="ce_")
        for most in range(200, 1500, 50)
    )
    said = [found for letter in letters if (found := dialects.read(letter)) is not None and found.run]
    assert any(found.truncated for found in said)
    assert {found.target for found in said} == {"orders-late"}


SECRETS = {
    "reason": "url amqp://u:hunter2@h refused, password=hunter2",
    "stacktrace": "File x\n  connect(token='hunter2')\n",
    "destination": "x://u:hunter2@h/q",
    "subscriber": "http://s?sas=hunter2",
    "target": "secret=hunter2",
    "extra": {"header": "access_key=hunter2"},
}


@pytest.mark.parametrize("dialect", ALL)
def test_no_secret_reaches_a_letter(dialect):
    event = Message(value=b'{"specversion":"1.0","id":"1","source":"s","type":"t"}', headers=(STRUCTURED,))
    for message in (event, Message(value=b"x")):
        letter = dialects.attach(message, ErrorContext(**SECRETS), dialect=dialect, limits=NO_LIMITS, prefix="ce_")
        assert b"hunter2" not in b"".join([letter.value, *(value for _, value in letter.headers)])
        assert dialects.read(letter).reason == redact(SECRETS["reason"])


@given(contexts, any_dialect)
@example(
    ErrorContext(reason="<html>\r\n\x00\x1b[31m\ud800</html>", native_code="\x00", destination="x:\n"), "deadletter"
)
@example(ErrorContext(reason="<html>\r\n\x00\x1b[31m\ud800</html>", stacktrace="\x00\ud800"), "connect")
def test_what_is_written_is_always_clean_text_under_valid_names(context, dialect):
    letter = dialects.attach(Message(value=b""), context, dialect=dialect, limits=NO_LIMITS, prefix="ce_")
    for name, value in letter.headers:
        assert name.isascii()
        assert name.replace("_", "").replace(".", "").replace("-", "").isalnum()
        text = value.decode()
        allowed = "\t\n" if name.startswith("__connect.") else ""
        assert not [c for c in text if (c < " " or c == "\x7f") and c not in allowed]


def hostile_headers():
    marker = st.sampled_from(MARKERS)
    listed = st.lists(
        st.sampled_from(["redelivery-context", "__connect.errors.stage", "ce_deadletterretry"]), max_size=3
    )
    json_junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )
    member_names = [item.name for item in fields(ErrorContext)] + [
        "index",
        "stages",
        "exception",
        "attempt",
        "time_of_error",
    ]
    members = st.dictionaries(st.sampled_from(member_names), json_junk, max_size=4)
    forms = json_junk | members | members.map(lambda inner: {"redelivery": inner})
    marks = st.fixed_dictionaries(
        {},
        optional={
            "dialect": st.sampled_from([*dialects.NAMES, "x"]) | json_junk,
            "headers": listed | json_junk,
            "attributes": st.lists(st.sampled_from(["deadletterretry", "id"])) | json_junk,
            "attempts_total": numbers | json_junk,
            "hops": json_junk,
            "inserted": st.lists(st.integers(-9, 99), max_size=3) | json_junk,
            "truncated": json_junk,
            "replaced": st.lists(
                st.tuples(
                    st.integers(-1, 9),
                    st.sampled_from(["__connect.errors.stage", "x"]),
                    st.sampled_from(["", "eA==", "x"]),
                ).map(list)
            )
            | json_junk,
            "retyped": st.tuples(
                st.text(max_size=3), st.sampled_from(["t", "x"]), st.integers(-9, 99), st.just('"t"')
            ).map(list)
            | json_junk,
        },
    )
    value = st.binary(max_size=9) | st.none() | st.just(b"[" * 100_000) | st.just(b"9" * 5000)
    names = st.sampled_from(
        [
            "__connect.errors.stage",
            "__connect.errors.offset",
            "ce_deadletterretry",
            "ce-knativeerrordata",
            "redelivery-context",
        ]
    )
    return st.lists(
        st.tuples(marker, marks.map(json.dumps).map(str.encode))
        | st.tuples(st.just("redelivery-context"), forms.map(json.dumps).map(str.encode))
        | st.tuples(names | marker, value)
        | st.just(STRUCTURED),
        max_size=5,
    ).map(tuple)


@given(hostile_headers(), st.none() | event_bodies | st.binary(max_size=9), contexts, any_dialect, limits)
@settings(deadline=None)  # the first that is read looks for plugins
def test_nothing_in_a_message_makes_reading_stripping_or_attaching_raise(headers, value, context, dialect, limit):
    message = Message(value=value, headers=headers)
    found = dialects.read(message)
    if found is not None:
        dialects.attach(message, found, dialect=dialect, limits=NO_LIMITS, prefix="ce_")
    dialects.strip(message)
    dialects.redriven(message)
    history = dialects.history(message)
    assert 0 <= history.attempts_total < 2**31
    assert 0 <= history.hops < 2**31
    letter = dialects.attach(message, context, dialect=dialect, limits=limit, prefix="ce_")
    dialects.read(letter)
    dialects.strip(letter)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 40))
def test_texts_are_cut_on_character_boundaries(text, limit):
    for cut in (head(text, limit), tail(text, limit)):
        assert len(cut.encode()) <= limit or cut == text
        assert "\ufffd" not in cut or "\ufffd" in text
    if len(text.encode()) <= limit:
        assert head(text, limit) == tail(text, limit) == text
