"""Arrow rows become messages; those that cannot are rejected, and harm no neighbour."""

import datetime as dt
import json
from dataclasses import replace
from itertools import cycle
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import from_arrow_schema

from redelivery.contract.broker import Capabilities, Letter, LetterBatch, Limits, Support
from redelivery.contract.context import UNRESOLVED, ErrorContext
from redelivery.contract.message import Message
from redelivery.deadletters.trust import Targets
from redelivery.errors import Permanent
from redelivery.formats import dialects, events, identity
from redelivery.spark import encoding
from redelivery.spark.columns import resolve
from redelivery.spark.encoding import Encoder
from redelivery.spark.features import arrow_schema
from redelivery.spark.letter_columns import LetterColumns, arrow_array
from redelivery.spark.letter_rows import unpack
from redelivery.spark.letter_schema import all_columns

Y = Support.NATIVE
CAPABILITIES = Capabilities(
    send=Y, keys=Y, headers=Y, ids=Y, timestamps=Y, null_value=Y, destinations=Y, columns={"n": int}
)
NO_NULLS = Capabilities(send=Y, keys=Y, headers=Y)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOON = dt.datetime(2024, 1, 31, 12, 0, 0, 250_000, tzinfo=dt.UTC)


def encode(rows, *, mode=None, require=(), capabilities=CAPABILITIES, prefix="run-0", pieces=1):
    if isinstance(rows, dict):
        rows = pa.record_batch(rows)
    layout = resolve(
        from_arrow_schema(rows.schema), capabilities, broker="x", content_mode=mode, require_attributes=require
    )
    encoder = Encoder(layout, capabilities, prefix=prefix, source="test", require_attributes=require)
    messages, rejected = [], []
    size = -(-len(rows) // pieces)
    for start in range(0, len(rows), size):
        batch, bad = encoder.encode(rows.slice(start, size))
        messages += [] if batch is None else list(batch.rows())
        rejected += alone(bad)
    return messages, rejected


class Bad(NamedTuple):
    """A row that is rejected."""

    message: Message
    error: Permanent
    stage: str
    position: int


def alone(rejected):
    """The rejected rows one by one, in their order."""
    found = [
        Bad(message, error, each.stage, position)
        for each in rejected
        for message, error, position in zip(each.messages.rows(), cycle(each.errors), each.positions)
    ]
    return sorted(found, key=lambda each: each.position)


def headers(*lists):
    return pa.array([None if each is None else [{"key": k, "value": v} for k, v in each] for each in lists], HEADERS)


def event_columns(**columns):
    length = len(next(iter(columns.values())))
    return {"type": ["t"] * length, "source": ["/s"] * length, **columns}


# --- raw -----------------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(),
            st.none() | st.binary(),
            st.none()
            | st.lists(st.tuples(st.text(st.characters(min_codepoint=32, max_codepoint=126)), st.none() | st.binary())),
            st.none() | st.text(),
            st.none() | st.integers(-(10**12), 10**12),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 3),
)
@settings(deadline=None)
def test_values_keys_headers_and_the_rest_arrive_as_they_were(rows, pieces):
    value, key, head, destination, moment = (list(each) for each in zip(*rows, strict=True))
    batch = pa.record_batch(
        {
            "value": pa.array(value, pa.binary()),
            "key": pa.array(key, pa.binary()),
            "headers": headers(*head),
            "destination": pa.array(destination, pa.string()),
            "timestamp": pa.array([None if m is None else m * 1000 for m in moment], pa.timestamp("us", "UTC")),
            "n": pa.array(moment, pa.int64()),
        }
    )
    messages, rejected = encode(batch, pieces=pieces)
    assert not rejected
    assert [m.value for m in messages] == value
    assert [m.key for m in messages] == key
    assert [m.headers for m in messages] == [tuple(each or ()) for each in head]
    assert [m.destination for m in messages] == destination
    assert [m.timestamp_ms for m in messages] == moment
    assert [m.extra["n"] for m in messages] == moment


def test_text_is_utf8():
    messages, _ = encode({"value": ["grüß"], "key": ["ß"]})
    assert (messages[0].value, messages[0].key) == ("grüß".encode(), "ß".encode())


def test_zero_bytes_and_null_differ():
    messages, _ = encode({"value": pa.array([b"", None], pa.binary())})
    assert [m.value for m in messages] == [b"", None]
    assert len({m.id for m in messages}) == 2


def test_a_null_value_is_rejected_where_the_broker_has_none():
    messages, rejected = encode({"value": [b"a", None, b"c"], "key": ["1", "2", "3"]}, capabilities=NO_NULLS)
    assert [m.value for m in messages] == [b"a", b"c"]
    assert [(r.error.native_code, r.message.key, r.stage) for r in rejected] == [
        ("null-value", b"2", "VALUE_CONVERTER")
    ]


def test_a_header_name_with_a_control_character_is_rejected_and_its_neighbours_are_not():
    rows = {"value": [b"a", b"b", b"c"], "headers": headers([("x", b"1")], [("evil\r\nname", b"2"), ("y", b"3")], None)}
    messages, rejected = encode(rows)
    assert [m.value for m in messages] == [b"a", b"c"]
    assert (rejected[0].error.native_code, rejected[0].stage) == ("invalid-header", "HEADER_CONVERTER")
    assert r"evil\r\nname" in str(rejected[0].error)
    assert ("y", b"3") in rejected[0].message.headers
    assert "evil" in rejected[0].message.value.decode()


def test_a_header_without_a_name_is_rejected():
    _, rejected = encode({"value": [b"a"], "headers": headers([(None, b"1")])})
    assert rejected[0].error.native_code == "invalid-header"


def test_text_that_is_not_utf8_is_rejected_with_its_bytes_kept():
    bad = pa.StringArray.from_buffers(
        2, pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00"), pa.py_buffer(b"a\xff\xfe")
    )
    messages, rejected = encode({"name": bad, "n2": [1, 2]})
    assert [json.loads(m.value) for m in messages] == [{"name": "a", "n2": 1}]
    assert rejected[0].error.native_code == "not-utf8"
    assert json.loads(rejected[0].message.value)["data"] == {"name": "//4=", "n2": 2}
    messages, rejected = encode({"value": bad})
    assert [m.value for m in messages] == [b"a", b"\xff\xfe"]
    assert not rejected


@pytest.mark.parametrize(
    ("column", "mode", "stage"),
    [
        ("key", "structured", "KEY_CONVERTER"),
        ("value", "structured", "VALUE_CONVERTER"),
        ("subject", "structured", "VALUE_CONVERTER"),
        ("subject", "binary", "HEADER_CONVERTER"),
        ("headers", "binary", "HEADER_CONVERTER"),
        ("destination", "binary", "TRANSFORMATION"),
    ],
)
def test_a_rejected_row_says_which_part_of_it_could_not_be_made(column, mode, stage):
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    if column == "headers":
        pair = pa.StructArray.from_arrays([bad, pa.array([b"v"])], ["key", "value"])
        bad = pa.ListArray.from_arrays([0, 1], pair)
    _, rejected = encode(event_columns(**({"value": ["v"]} | {column: bad})), mode=mode)
    assert [(each.error.native_code, each.stage) for each in rejected] == [("not-utf8", stage)]


# --- ids -----------------------------------------------------------------------------------------------------------


def test_an_id_of_ones_own_wins_and_a_null_one_is_derived():
    messages, _ = encode({"value": [b"a", b"b"], "id": ["../" * 100, None]})
    assert messages[0].id == "../" * 100
    assert messages[1].id.startswith("run-0-1-")


def test_a_whole_number_can_be_an_id():
    messages, _ = encode({"value": [b"a"], "id": [7]})
    assert messages[0].id == "7"


def test_ids_are_the_same_however_the_rows_come_in_batches():
    rows = {
        "value": [str(i).encode() for i in range(10)],
        "headers": headers(*([("h", str(i).encode())] for i in range(10))),
    }
    assert [m.id for m in encode(rows)[0]] == [m.id for m in encode(rows, pieces=3)[0]]


@given(st.permutations(list(range(6))))
@settings(deadline=None)
def test_an_old_id_never_names_another_row(order):
    def ids(indices):
        rows = {
            "value": [b"v%d" % i for i in indices],
            "key": ["k"] * 6,
            "headers": headers(*([("h", b"")] for _ in indices)),
        }
        return {m.id: m.value for m in encode(rows)[0]}

    first, second = ids(range(6)), ids(order)
    assert all(second[name] == first[name] for name in second.keys() & first.keys())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"key": "a", "value": b"b"}, {"key": "b", "value": b"a"}),
        ({"key": "", "value": b"x"}, {"key": None, "value": b"x"}),
        ({"headers": [("a", b"1"), ("b", b"2")]}, {"headers": [("b", b"2"), ("a", b"1")]}),
        ({"headers": [("a", b"b")]}, {"headers": [("b", b"a")]}),
        ({"headers": [("a", b"")]}, {"headers": [("a", None)]}),
        ({"destination": "a", "key": "b"}, {"destination": "b", "key": "a"}),
    ],
)
def test_rows_that_differ_in_anything_have_other_ids(one, other):
    def made(row):
        full = {"key": "k", "value": b"v", "headers": [], "destination": "d"} | row
        rows = pa.record_batch(
            {
                "key": pa.array([full["key"]], pa.string()),
                "value": [full["value"]],
                "headers": headers(full["headers"]),
                "destination": pa.array([full["destination"]], pa.string()),
            }
        )
        return encode(rows)[0][0].id

    assert made(one) != made(other)
    assert made(one) == made(one)


def test_rejecting_a_row_does_not_move_the_ids_of_the_others():
    good = {"value": [b"a", b"b", b"c"], "key": ["1", "2", "3"]}
    bad = good | {"value": [b"a", None, b"c"]}
    ids = [m.id for m in encode(good, capabilities=NO_NULLS)[0]]
    assert [m.id for m in encode(bad, capabilities=NO_NULLS)[0]] == [ids[0], ids[2]]


ROUTED = replace(CAPABILITIES, columns={"exchange": str, "delay": int})


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("exchange", ["x", "y"]),
        ("delay", [1, 2]),
        ("timestamp", pa.array([NOON, NOON + dt.timedelta(seconds=1)], pa.timestamp("us", "UTC"))),
    ],
)
def test_rows_that_differ_in_a_column_of_the_brokers_own_or_in_time_never_swap_ids(column, values):
    rows = pa.record_batch({"value": [b"a", b"a"], column: values})
    ids = [m.id for m in encode(rows, capabilities=ROUTED)[0]]
    other = [m.id for m in encode(rows.take([1, 0]), capabilities=ROUTED)[0]]
    assert not set(ids) & set(other)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "GMT+08:00", "Z"])
def test_the_sessions_time_zone_changes_nothing(zone):
    """A moment is one, in the hour that occurs twice too, and in zones that only Spark knows."""
    twice = dt.datetime(2024, 10, 27, 0, 30, 0, 123_456, tzinfo=dt.UTC)
    micros = pa.array([int(twice.timestamp() * 1_000_000)])

    def made(tz):
        moment = micros.cast(pa.timestamp("us", tz))
        events = event_columns(time=moment, data=[b"v"]) | {"value": [b"v"], "timestamp": moment}
        events.pop("data")
        (message,), rejected = encode(events)
        assert not rejected
        return message

    assert made(zone) == made("UTC")


def test_arrows_large_types_are_as_good_as_the_plain_ones():
    large = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    plain = {"key": ["k"], "headers": headers([("a", b"1")]), "value": [b"v"]}
    rows = {
        "key": pa.array(["k"], pa.large_string()),
        "headers": plain["headers"].cast(large),
        "value": pa.array([b"v"], pa.large_binary()),
    }
    assert encode(rows) == encode(plain)
    whole = {"a": pa.array(["x"], pa.large_string()), "b": [1]}
    assert encode(whole) == encode({"a": ["x"], "b": [1]})


def test_a_row_whose_value_is_no_text_can_be_rejected_for_something_else():
    value = pa.array([b"\xff\xfe"]).view(pa.string())
    _, (rejected,) = encode({"value": value, "headers": headers([(None, b"1")])})
    assert rejected.error.native_code == "invalid-header"


def test_events_of_attributes_alone_have_no_data():
    (message,), rejected = encode(event_columns(subject=["s"]), mode="structured")
    assert not rejected
    assert "data" not in json.loads(message.value)


def test_in_order_a_bad_row_comes_between_those_before_and_those_behind_it():
    rows = pa.record_batch({"value": [None, b"b", b"c", None, None, b"f"], "key": ["1", "2", "3", "4", "5", "6"]})
    layout = resolve(from_arrow_schema(rows.schema), NO_NULLS, broker="x", content_mode=None, require_attributes=())
    encoder = Encoder(layout, NO_NULLS, prefix="run-0", source="test")
    seen = []
    for batch, rejected in encoder.in_order(rows):
        seen += [] if batch is None else [(m.key, m.id) for m in batch.rows()]
        seen += [(each.message.key, each.message.id) for each in alone(rejected)]
    assert [key for key, _ in seen] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    good, bad = encode(rows, capabilities=NO_NULLS)
    assert sorted(seen) == sorted([(m.key, m.id) for m in good] + [(each.message.key, each.message.id) for each in bad])
    assert [each.position for each in bad] == [0, 3, 4]


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_events_with_an_id_of_their_own_are_recognised_by_it_and_their_source(mode):
    """As one by one: a redrive and a job in Python say the same. A derived id is of the source already."""
    knows = replace(CAPABILITIES, deduplicate=Y, cloudevents_prefix="ce-")
    rows = event_columns(source=["/a", "/longer", "/b", "/b"], id=["1", "1", None, "2"], value=["{}"] * 4)
    rows["specversion"] = ["1.0", "1.0", "1.0", None]
    messages, _ = encode(rows, mode=mode, capabilities=knows)
    assert [m.identity for m in messages] == ["2 /a 1", "7 /longer 1", None, None]
    assert [identity.of_message(replace(m, identity=None)) for m in messages[:2]] == [m.identity for m in messages[:2]]
    assert not any(m.identity for m in encode(rows, mode=mode)[0]), "where nothing is recognised none is needed"


def test_mended_letters_of_one_id_are_recognised_by_what_they_hold():
    """Two jobs' rows of one id, read as letters, mended and written again, are two, and each once in a retried task."""
    letters = [dialects.redriven(Message(value=value, id="1")) for value in (b"first", b"second", b"first")]
    lists = [list(letter.headers) for letter in letters]
    rows = {"value": [m.value for m in letters] + [b"raw"], "id": ["1~1"] * 4}
    rows["headers"] = headers(*lists, [("other", b"")])
    knows = replace(CAPABILITIES, deduplicate=Y)
    first, second, again, raw = (m.identity for m in encode(rows, capabilities=knows)[0])
    assert first == again
    assert len({first, second, raw}) == 3
    assert raw is None
    assert [m.identity for m in encode(rows, capabilities=knows, pieces=3)[0]] == [first, second, again, raw]


def test_good_raw_rows_have_no_identity_and_cost_nothing():
    rows = pa.record_batch({"value": [b"a"], "id": ["1"]})
    for deduplicate in (Support.NONE, Y):
        has = replace(CAPABILITIES, deduplicate=deduplicate)
        layout = resolve(from_arrow_schema(rows.schema), has, broker="x", content_mode=None, require_attributes=())
        batch, _ = Encoder(layout, has, prefix="run-0", source="test").encode(rows)
        assert [m.identity for m in identity.identified(batch).rows()] == [None]
        assert (batch.identity is None) == (deduplicate is Support.NONE)


def test_ids_are_made_only_when_asked_for(monkeypatch):
    from redelivery.spark import vectors  # noqa: PLC0415

    made = []
    real = vectors.digests
    monkeypatch.setattr(vectors, "digests", lambda arrays: made.append(1) or real(arrays))
    rows = pa.record_batch({"value": [b"a"]})
    layout = resolve(from_arrow_schema(rows.schema), CAPABILITIES, broker="x")
    batch, _ = Encoder(layout, CAPABILITIES, prefix="p", source="s").encode(rows)
    _ = batch.value.values
    assert not made
    assert batch.id.values[0].startswith("p-0-")
    assert made


# --- events --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_events_are_what_the_cloudevents_package_reads(mode):
    rows = event_columns(
        subject=["a", None],
        time=pa.array([NOON, None], pa.timestamp("us", "UTC")),
        amount=[1, 2],
        extensions=pa.array([[("traceid", "x")], None], pa.map_(pa.string(), pa.string())),
        headers=headers([("own", b"1")], None),
    )
    messages, rejected = encode(rows, mode=mode)
    assert not rejected
    assert events.is_structured(messages[0]) == (mode == "structured")
    forms = [events.to_json(events.to_event(message)) for message in messages]
    first = {k: v for k, v in forms[0].items() if k in (*events.ATTRIBUTES, "data", "traceid")}
    assert first == {
        "specversion": "1.0",
        "id": messages[0].id,
        "type": "t",
        "source": "/s",
        "subject": "a",
        "time": first["time"],
        "datacontenttype": "application/json",
        "data": {"amount": 1},
        "traceid": "x",
    }
    assert dt.datetime.fromisoformat(first["time"]) == NOON
    assert "subject" not in forms[1]
    assert "time" not in forms[1]
    assert ("own", b"1") in messages[0].headers


@pytest.mark.parametrize("mode", ["binary", "structured"])
@pytest.mark.parametrize(
    ("column", "bad", "code"),
    [
        ("type", None, "missing-type"),
        ("type", "", "missing-type"),
        ("source", None, "missing-source"),
        ("id", "", "missing-id"),
        ("subject", None, "missing-subject"),
        ("time", "yesterday", "invalid-time"),
        ("time", "2023-02-30T00:00:00Z", "invalid-time"),
        ("time", "2023-02-28T25:00:00Z", "invalid-time"),
        ("specversion", "0.3", "invalid-specversion"),
    ],
)
def test_a_row_that_is_no_valid_event_is_rejected_with_all_it_had(mode, column, bad, code):
    columns = {
        "type": ["t"] * 3,
        "source": ["/s"] * 3,
        "subject": ["x"] * 3,
        "id": ["1", "2", "3"],
        "specversion": ["1.0"] * 3,
        "time": ["2024-02-29T00:00:00Z"] * 3,
        "key": ["k1", "k2", "k3"],
        "headers": headers(*([("h", b"v")] for _ in range(3))),
        "amount": [1, 2, 3],
    }
    columns[column] = pa.array([columns[column][0], bad, columns[column][2]], pa.string())
    messages, rejected = encode(columns, mode=mode, require=("subject",))
    assert [m.key for m in messages] == [b"k1", b"k3"]
    letter = rejected[0].message
    assert rejected[0].error.native_code == code
    assert rejected[0].stage == {"binary": "HEADER_CONVERTER", "structured": "VALUE_CONVERTER"}[mode]
    assert letter.key == b"k2"
    assert ("h", b"v") in letter.headers
    assert letter.id == ("2" if column != "id" else letter.id)
    event = events.to_event(letter)
    assert event.get_type() == events.UNDELIVERABLE
    assert event.get_data()["amount"] == 2
    assert event.get_data()[column] == bad


def test_rows_without_a_specversion_are_plain_messages_among_events():
    rows = event_columns(
        specversion=pa.array(["1.0", None]), value=[b"1", b"\xff"], headers=headers(None, [("h", b"v")])
    )
    for mode in ("binary", "structured"):
        messages, rejected = encode(rows, mode=mode)
        assert not rejected
        assert events.to_event(messages[0]).get_type() == "t"
        assert (messages[1].value, messages[1].headers) == (b"\xff", (("h", b"v"),))


def test_structured_data_is_json_text_or_base64_as_its_type_says():
    rows = event_columns(
        datacontenttype=pa.array(["application/json", "application/xml", None, "application/json"]),
        value=[b'{"a": 1}', b"<a/>", b"\xff", b"{broken"],
    )
    messages, rejected = encode(rows, mode="structured")
    forms = [json.loads(m.value) for m in messages]
    assert forms[0]["data"] == {"a": 1}
    assert forms[1]["data_base64"] == "PGEvPg=="
    assert forms[2]["data_base64"] == "/w=="
    assert [(r.error.native_code, type(r.error.__cause__)) for r in rejected] == [
        ("invalid-data", json.JSONDecodeError)
    ]
    text = encode(event_columns(datacontenttype=["text/plain"], value=['say "hi"\n']), mode="structured")[0]
    assert json.loads(text[0].value)["data"] == 'say "hi"\n'


def test_a_header_that_would_be_written_twice_is_rejected():
    rows = event_columns(value=[b"1", b"2"], headers=headers([("ce-type", b"forged")], [("fine", b"")]))
    messages, rejected = encode(rows, mode="binary")
    assert [m.value for m in messages] == [b"2"]
    assert rejected[0].error.native_code == "invalid-header"


@given(st.lists(st.tuples(*[st.none() | st.text(max_size=5)] * 3), min_size=1, max_size=5))
@settings(deadline=None)
def test_whatever_the_attributes_hold_what_goes_out_is_a_valid_event(rows):
    kind, source, subject = (pa.array(list(each), pa.string()) for each in zip(*rows, strict=True))
    for mode in ("binary", "structured"):
        messages, rejected = encode(
            {"type": kind, "source": source, "subject": subject, "a": [1] * len(rows)}, mode=mode
        )
        assert len(messages) + len(rejected) == len(rows)
        for message in messages:
            assert events.to_event(message).get_type() != events.WRAPPED


_TEXT = st.sampled_from([None, "", "t", "/s", "é\n", "a b", "redelivery.undeliverable"])
_ROW = st.tuples(
    st.sampled_from(["t", "t", None, "", "redelivery.undeliverable"]),
    st.sampled_from(["/s", None, "a b"]),
    _TEXT,
    st.none() | st.sampled_from(["", "i"]),
    st.none() | st.sampled_from([(), (("ce-type", b"1"),), ((None, b""),), (("Content-Type", b"a"), ("x", b""))]),
    st.none() | st.binary(max_size=2),
    st.sampled_from(
        ['{"a":1}', '{"b":1e400,"c":0.1234567890123456789,"d":1.10}', '{"e":"\\u00e9","f":NaN}', "{}", None]
    ),
)


@given(st.lists(_ROW, min_size=1, max_size=6), st.sampled_from(["raw", "binary", "structured"]), st.booleans())
@settings(deadline=None)
def test_rows_are_rejected_at_once_as_they_are_one_by_one(rows, mode, encoded):
    type_, source, subject, id_, head, key, value = (list(each) for each in zip(*rows, strict=True))
    attributes = {"type": type_, "source": source, "subject": subject} if mode != "raw" else {}
    columns = {name: pa.array(each, pa.string()) for name, each in attributes.items()} | {
        "id": pa.array(id_, pa.string()),
        "headers": headers(*head),
        "key": pa.array(key, pa.binary()),
        "n": pa.array([None] * len(rows), pa.int64()),
        "value": pa.array(value if encoded else key, pa.string() if encoded else pa.binary()),
    }
    batch = pa.record_batch(columns)
    require = ("id", "subject") if mode != "raw" else ()
    there = replace(NO_NULLS, columns={"n": int})
    layout = resolve(from_arrow_schema(batch.schema), there, broker="x", content_mode=mode, require_attributes=require)
    if encoded:
        layout = replace(layout, json_from="value")

    def rejected(encoder):
        return alone(encoder.encode(batch)[1])

    encoder = Encoder(layout, there, prefix="run-0", source="test", require_attributes=require)
    found = rejected(encoder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Encoder, "_judged_at_once", lambda *_: {})
        patch.setattr(encoding._Piece, "_documents", refuse)
        wanted = rejected(Encoder(layout, there, prefix="run-0", source="test", require_attributes=require))
    assert [(each.message, str(each.error), each.error.native_code, each.stage, each.position) for each in found] == [
        (each.message, str(each.error), each.error.native_code, each.stage, each.position) for each in wanted
    ]


def refuse(*_):
    """Leave it to the way of one row."""
    raise ValueError


def again(message, *, mode="structured", capabilities=CAPABILITIES, **changes):
    """The message that a letter becomes which is read as a row, changed, and written."""
    row = unpack(Letter(position="1", message=message, context=None), Targets(), capabilities) | changes
    columns = t.StructType([each for each in all_columns(capabilities).fields if not each.name.startswith("_")])
    arrays = {each.name: arrow_array([row.get(each.name)], each.type) for each in arrow_schema(columns)}
    batch = pa.record_batch(arrays)
    messages, rejected = encode(batch, mode=mode, capabilities=capabilities)
    return messages[0] if messages else rejected[0].error


def row_of(message, *allowed, context=None):
    there = replace(CAPABILITIES, columns={"road": str, "gate": str, "row": int}, routes=frozenset({"road", "gate"}))
    return unpack(Letter(position="1", message=message, context=context), Targets(allowed=allowed), there)


FORGED = ErrorContext(kind="permanent", target="victim", extra={"gate": "back"})


@pytest.mark.parametrize(
    "message",
    [
        dialects.attach(Message(value=b"v", extra={"road": "r"}), FORGED, dialect=name, limits=Limits(), prefix="ce-")
        for name in dialects.NAMES
    ],
)
def test_no_header_chooses_where_a_row_is_written(message):
    row = row_of(message)
    assert (row["destination"], row["road"], row["gate"]) == (None, None, None)
    assert row["_error"]["target"] == "victim, gate=back, road=r"
    allowed = row_of(message, "vic*", "road=r", "gate=front")
    assert (allowed["destination"], allowed["road"], allowed["gate"]) == ("victim", "r", None)


def test_an_event_that_stands_for_a_message_chooses_no_place_either():
    event = events.to_json(events.to_event(Message(value=b"v", destination="victim", extra={"road": ""})))
    headers = (("content-type", b"application/cloudevents+json"),)
    row = row_of(Message(value=json.dumps(event).encode(), headers=headers))
    assert (row["value"], row["destination"], row["road"], row["_error"]["target"]) == (b"v", None, None, "victim")


def test_a_letter_without_a_target_has_none():
    assert row_of(Message(value=b"v"))["_error"]["target"] is None


def structured(**members):
    form = {"specversion": "1.0", "id": "1", "type": "t", "source": "/s", **members}
    return Message(value=json.dumps(form).encode(), headers=(("content-type", b"application/cloudevents+json"),))


#: Members of events in JSON, as other programs write them.
EVENTS = [
    {"data": "hello", "datacontenttype": "text/plain"},
    {"data": "é\n", "datacontenttype": "text/csv; charset=utf-8"},
    {"data": "<a/>", "datacontenttype": "application/xml"},
    {"data_base64": "PGEvPg==", "datacontenttype": "application/xml"},
    {"data_base64": "aGVsbG8=", "datacontenttype": "text/plain"},
    {"data_base64": "e30=", "datacontenttype": "application/json"},
    {"data_base64": "/w==", "datacontenttype": "application/json"},
    {"data": "text", "datacontenttype": "application/json"},
    {"data": {"a": [1, None, True]}},
    {"data": "hello"},
    {"data": "5"},
    {"data": 5},
    {"data": "null"},
    {"data": False},
    {"data_base64": "NQ=="},
    {"data_base64": ""},
    {"data": ""},
    {},
    {"flag": True, "n": -5, "text": "true", "digits": "007"},
    {"time": "2024-01-31T12:00:00.123456789Z"},
    {"time": "9999-12-31T23:59:59.999999999Z"},
    {"time": "0001-01-01T00:00:00.000000001Z"},
    {"dataschema": "https://example.org/a#/b", "subject": "x", "datacontenttype": "application/json", "data": []},
]


@pytest.mark.parametrize("members", EVENTS, ids=json.dumps)
def test_an_event_that_is_read_as_a_row_and_written_again_is_the_same_event(members):
    before = json.loads(structured(**members).value)
    assert json.loads(again(structured(**members)).value) == {**before, "id": "1~1"}


@given(
    st.sampled_from([None, "application/json", "text/plain", "application/octet-stream"]),
    st.recursive(
        st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner | st.none(), max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=4,
    ),
    st.dictionaries(st.from_regex("x[a-z0-9]{0,3}", fullmatch=True), st.booleans() | st.integers() | st.text("a5t ")),
    st.integers(0, 999_999_999),
)
@settings(deadline=None)
def test_whatever_an_event_holds_it_is_the_same_after_a_life_as_a_row(kind, data, extensions, nanos):
    data = data if kind in (None, "application/json") else str(data)
    members = {"data": data, "time": f"2024-01-31T12:00:00.{nanos:09}Z", **extensions}
    members |= {} if kind is None else {"datacontenttype": kind}
    before = json.loads(structured(**members).value)
    after = json.loads(again(structured(**members)).value)
    assert after.pop("time").rstrip("0Z") == before.pop("time").rstrip("0Z")
    assert after == {**before, "id": "1~1"}


def test_a_time_of_nanoseconds_is_kept_in_binary_mode_and_a_changed_one_wins():
    moment = "2024-01-31T12:00:00.123456789Z"
    out = again(structured(time=moment), mode="binary")
    assert dict(out.headers)["ce-time"] == moment.encode()
    changed = again(structured(time=moment), time=0)
    assert json.loads(changed.value)["time"] == "1970-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"value": b"{broken"}, "invalid-data"),
        ({"value": b"x", "encodings": {"data": "yaml"}}, "invalid-encodings"),
        ({"value": b"\xff", "encodings": {"data": "string"}}, "invalid-data"),
        ({"extensions": {"flag": "yes"}}, "invalid-flag"),
        ({"extensions": {"flag": "1.5"}}, "invalid-flag"),
        ({"extensions": {"time": "yesterday"}}, "invalid-time"),
        ({"source": "a b"}, "invalid-source"),
        ({"dataschema": "relative"}, "invalid-dataschema"),
        ({"datacontenttype": "json"}, "invalid-datacontenttype"),
    ],
)
def test_a_row_whose_event_cannot_be_written_as_it_says_is_rejected_with_the_reason(changes, code):
    assert again(structured(data={"a": 1}, flag=True), **changes).native_code == code


@pytest.mark.parametrize("column", ["source", "dataschema", "datacontenttype"])
@given(text=st.text("aZ0-._~:/?#[]@!$&'()*+,;= %41é\"<>\\^{|}\t", max_size=12))
@settings(deadline=None)
def test_what_is_taken_for_plainly_good_is_what_the_check_calls_good(column, text):
    rows = event_columns(**{column: [text]}, value=["1"]) if column != "source" else event_columns(value=["1"])
    rows[column] = pa.array([text], pa.string())
    _, rejected = encode(rows, mode="binary")
    try:
        events.validate({"id": "1", "type": "t", "source": "/s", column: text})
    except Permanent:
        assert rejected
    else:
        assert not rejected


@pytest.mark.parametrize("headers", [(), (("pointer", b"orders/0/7"),)])
def test_a_letter_that_only_points_is_not_written_as_a_row_and_harms_no_neighbour(headers):
    """Its value is null: written, it would be a tombstone."""
    context = ErrorContext(reason="gone", kind=UNRESOLVED, native_code="deleted")
    letters = [
        Letter(position="1", message=Message(value=None, headers=headers), context=context),
        Letter(position="2", message=Message(value=b"v", headers=(("h", b"1"),)), context=replace(context, kind="")),
    ]
    rows = (
        LetterColumns(all_columns(CAPABILITIES), Targets(), CAPABILITIES)
        .record_batch(LetterBatch.of(letters))
        .to_pydict()
    )
    fields = {"id": pa.string(), "value": pa.binary(), "headers": HEADERS}
    columns = {name: pa.array(rows[name], kind) for name, kind in fields.items()}
    messages, rejected = encode(columns)
    assert [each.value for each in messages] == [b"v"]
    assert [each.error.native_code for each in rejected] == [UNRESOLVED]
    assert "only points" in str(rejected[0].error)
