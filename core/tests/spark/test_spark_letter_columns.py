"""Letters as columns are the rows that each of them is alone. Without Spark."""

from dataclasses import replace

import pytest
from hostile import messages
from hypothesis import given, settings
from hypothesis import strategies as st

from redelivery.contract.broker import Capabilities, Letter, LetterBatch, Limits, Support
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Column, Message
from redelivery.deadletters.operations import sent_back
from redelivery.deadletters.trust import Targets
from redelivery.errors import Permanent
from redelivery.formats import dialects, events
from redelivery.spark import letter_schema
from redelivery.spark.features import arrow_schema
from redelivery.spark.letter_columns import LetterColumns, arrow_array
from redelivery.spark.letter_rows import unpack

Y = Support.NATIVE
THERE = Capabilities(
    send=Y, browse=Y, destinations=Y, columns={"exchange": str, "row": int, "type": str}, routes=frozenset({"exchange"})
)
WHOLE = letter_schema.all_columns(THERE)
NAMES = [*WHOLE.names, *(f"_error.{each}" for each in WHOLE["_error"].dataType.names)]

contexts = st.builds(
    ErrorContext,
    reason=st.sampled_from(["", "refused", "half \ud800"]),
    kind=st.sampled_from(["", "permanent", "expired", "unresolved"]),
    code=st.sampled_from([None, "TOO_LARGE"]),
    attempts=st.none() | st.integers(0, 9),
    hops=st.integers(0, 3),
    target=st.sampled_from([None, "orders", "other"]),
    message_id=st.sampled_from([None, "", "m~1", "m"]),
    destination=st.sampled_from([None, "shelf:///x"]),
    first_failure_ms=st.none() | st.integers(0, 2**40),
    run=st.sampled_from([None, "r"]),
    extra=st.sampled_from([{}, {"exchange": "e"}, {"exchange": "", "x": "y"}]),
)
bare = st.builds(
    Message,
    value=st.sampled_from([None, b"", b"v", b'{"a": 1}']),
    key=st.none() | st.binary(max_size=3),
    headers=st.sampled_from(
        [
            (),
            (("own", b"1"), ("own", None)),
            (("content-type", b"text/plain"), ("half\ud800", b"")),
            *(
                (*((prefix + name, value) for name, value in attributes), ("x", b"y"), ("Content-Type", b"a/b"))
                for prefix in ("ce_", "cloudEvents:")
                for attributes in (
                    (("specversion", b"1.0"), ("id", b"e"), ("source", b"/s"), ("type", b"t")),
                    (("specversion", b"1.0"), ("id", b"e"), ("source", b"/s"), ("type", b"t"), ("time", b"noon")),
                    (("specversion", b"1.0"), ("id", b""), ("source", b"/s"), ("type", b"t"), ("trace", b"\xff")),
                    (("id", b"e"), ("source", b"/s"), ("type", b"t"), ("time", b"2024-01-31T12:00:00Z")),
                )
            ),
        ]
    ),
    id=st.sampled_from([None, "", "i", "i~1"]),
    destination=st.sampled_from([None, None, "orders", "other"]),
    timestamp_ms=st.none() | st.integers(-(2**50), 2**50),
    extra=st.dictionaries(st.sampled_from(["exchange", "row", "type", "unknown"]), st.sampled_from(["", "e", 1, "f"])),
)
rows = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=3),
    lambda each: st.lists(each, max_size=2) | st.dictionaries(st.text(max_size=2), each, max_size=2),
    max_leaves=4,
)
undeliverable = st.builds(
    lambda row, id_, reason, headers, key: events.undeliverable(
        row, id=id_, error=Permanent(reason, code="INVALID_MESSAGE", native_code="k"), key=key, headers=headers
    ),
    st.binary(max_size=3) | st.dictionaries(st.text(max_size=2), rows, max_size=3),
    st.text(max_size=3),
    st.sampled_from(["no subject", "no é\n"]),
    st.sampled_from([(), (("own", b"1"), ("content-type", b"a/b"))]),
    st.none() | st.binary(max_size=3),
)
spelt = st.lists(
    st.sampled_from(
        [
            b',"time":"2024-01-31T12:00:00.1234567Z"',
            b',"subject":null',
            b',"more":1,"one":true,"odd":1.5',
            b',"odd":1.0',
            b',"datacontenttype":"text/plain"',
            b',"datacontenttype":"application/json"',
            b',"data":"text"',
            b',"data":{"a":NaN}',
            b',"data":{"b":1e400,"c":0.1234567890123456789}',
            b',"data":[{"\\ud800":1.0}]',
            b',"data_base64":"AA=="',
            b',"data_base64":"A"',
            b',"id":7',
            b',"id":""',
            b',"type":"redelivery.message"',
        ]
    ),
    max_size=4,
).map(
    lambda parts: Message(
        value=b'{"id":"e","type":"t","source":"/s","specversion":"1.0"' + b"".join(parts) + b"}",
        headers=(("content-type", b"application/cloudevents+json"),),
    )
)
structured = bare.map(events.wrapped) | undeliverable | spelt
written = st.builds(
    lambda message, context, dialect, wrapped, retype, key: dialects.attach(
        dialects.redriven(message) if retype else message,
        context,
        dialect=dialect,
        limits=Limits(),
        prefix="ce_",
        wrapped=wrapped,
        rename_type="dead" if retype else None,
        key=key,
    ),
    bare | structured,
    contexts,
    st.sampled_from(["connect", "json", ("deadletter", "knativeerror"), ("connect", "knativeerror")]),
    st.booleans(),
    st.booleans(),
    st.none() | st.just(b"k" * 16),
)
letters = st.builds(
    Letter,
    position=st.sampled_from(["1", "2"]),
    message=bare | written | written | messages,
    context=st.none() | contexts,
    dead_lettered_ms=st.none() | st.integers(),
    signed=st.none() | st.booleans(),
)
allowed = st.sampled_from([(), ("*",), ("orders", "exchange=*")])


def by_rows(batch, wanted, targets):
    """The columns of a batch as its rows say, one by one."""
    rows = [unpack(each, targets, THERE) for each in batch.letters()]
    arrow = arrow_schema(wanted)
    columns = {field: [_pruned(row.get(field.name), field) for row in rows] for field in arrow}
    return {field.name: arrow_array(values, field.type).to_pylist() for field, values in columns.items()}


def _pruned(value, field):
    return {each.name: value[each.name] for each in field.type} if field.name == "_error" else value


#: So many letters are of one cause: what they share is worked out once.
counts = st.sampled_from([1, 1, 3, 9])


def repeated(found, count):
    """Each letter several times."""
    return LetterBatch.of([each for each in found for _ in range(count)])


@given(st.lists(letters, min_size=1, max_size=4), counts, allowed)
@settings(deadline=None)
def test_columns_are_rows(found, count, admitted):
    batch = repeated(found, count)
    targets = Targets(allowed=admitted)
    assert LetterColumns(WHOLE, targets, THERE).record_batch(batch).to_pydict() == by_rows(batch, WHOLE, targets)


@given(
    st.lists(letters, min_size=1, max_size=3),
    counts,
    st.lists(st.sampled_from(NAMES), min_size=1),
)
@settings(deadline=None)
def test_any_columns_alone_are_those_columns(found, count, names):
    """Decoded from what they are read from, and from nothing else."""
    wanted = letter_schema.only(WHOLE, names)
    columns = LetterColumns(wanted, Targets(), THERE)
    batch = repeated(found, count)
    whole = columns.reads_values and columns.structured(batch.messages)
    narrow = batch if whole else without(batch, columns.sources)
    assert columns.record_batch(narrow).to_pydict() == by_rows(batch, wanted, Targets())


def without(batch, kept):
    """The batch as a plugin returns it that has read nothing but these columns."""
    given_up = {name: None for name in ("key", "headers", "id", "destination", "timestamp_ms") if name not in kept} | (
        {"extra": {}} if "extra" not in kept else {}
    )
    if "value" not in kept:
        given_up["value"] = Column.of([None] * len(batch))
    return replace(batch, messages=replace(batch.messages, **given_up))


def test_the_end_of_an_applications_own_id_is_not_taken_for_ours():
    context = ErrorContext(reason="no", kind="permanent")
    failed = dialects.attach(Message(value=b"v", id="i"), context, dialect="json", limits=Limits(), prefix=None)
    dead = [Letter(position="1", message=Message(value=b"v", id="i~1")), Letter(position="2", message=failed)]
    batch = LetterBatch.of([replace(each, message=sent_back(each, THERE)) for each in dead])
    assert [each.message.id for each in batch.letters()] == ["i~1", "i~1"]
    rows = LetterColumns(WHOLE, Targets(), THERE).record_batch(batch).to_pydict()
    assert rows["id"] == ["i~1~2", "i~2"]


@pytest.mark.parametrize("dialect", ["json", ("json", "deadletter", "knativeerror"), ("connect", "knativeerror")])
def test_letters_of_rows_that_never_became_messages_are_not_read_one_by_one(dialect, monkeypatch):
    count = 20
    error = Permanent("no subject", code="INVALID_MESSAGE", native_code="missing-subject")
    made = events.undeliverable_all(
        [events.row_json({"n": number, "name": "é" * (number % 3)}) for number in range(count)],
        ids=[f"row-{number}" for number in range(count)],
        errors=[error],
    )
    context = ErrorContext(reason="no subject", code="INVALID_MESSAGE", kind="permanent", attempts=0, run="r")
    written = dialects.attach_all(
        made, context, {"position": range(count)}, dialect=dialect, limits=Limits(), prefix="ce_"
    )
    batch = LetterBatch.of([Letter(position=str(at), message=each) for at, each in enumerate(written.rows())])
    wanted = by_rows(batch, WHOLE, Targets())
    for name in ("redelivery.spark.letter_columns.unpack", "redelivery.formats.dialects._single._read_ours"):
        monkeypatch.setattr(name, None)
    assert LetterColumns(WHOLE, Targets(), THERE).record_batch(batch).to_pydict() == wanted


def test_what_somebody_made_long_is_not_kept_behind_its_batch():
    long = "x" * 100_000
    kept = []
    for number in range(2):
        columns = LetterColumns(WHOLE, Targets(), THERE)
        marker = b'{"hops":1,"headers":["%b"]}' % (long.encode() * number)
        message = Message(value=b"v", headers=(("redelivery-letter", marker),), destination="orders" + long * number)
        batch = LetterBatch.of([Letter(position="1", message=message)])
        assert columns.record_batch(batch).to_pydict() == by_rows(batch, WHOLE, Targets())
        kept.append((len(columns._hops), len(columns._found)))
    assert kept == [(1, 1), (0, 0)]
