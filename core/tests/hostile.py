"""Messages that somebody has written to harm whoever reads them. Shared by tests of all that reads letters."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import strategies as st

from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message

STRUCTURED = ("content-type", b"application/cloudevents+json")
#: JSON, or nearly, that no honest writer of ours writes.
VALUES = (
    *("NaN", "-Infinity", "1e400", "-1e400", "1" + "0" * 400, "9" * 5000, "0.1" + "0" * 400 + "1", f"1e{'9' * 18}"),
    *("-1", "0", "2147483648", "-2147483649", "9223372036854775808", "253402300800000", "-99999999999999", "3.5"),
    *("true", "null", '""', '"text"', '"\\ud800"', '"a\\u0000b"', '"\\u001b[2J"', '"' + "x" * 3000 + '"'),
    *("[]", "{}", '["a"]', '{"a": 1}', '{"\\ud800": "\\udfff"}', '{"a": "b"}', "[[[[1.10]]]]"),
    *("[" * 100_000, '{"a":' * 100_000, "[" * 800 + "1.10000000000000000000001" + "]" * 800, "tru", '"', ""),
)
FIELDS = tuple(item.name for item in fields(ErrorContext))
MARK = ("dialect", "headers", "attributes", "inserted", "attempts_total", "hops", "truncated", "maybe_delivered")
MARK += ("retyped", "wrapped")
#: Marks that are taken for ours, so that what they lead to is tried.
MARKS = (
    b'{"dialect": "json", "headers": ["redelivery-context"]}',
    b'{"dialect": "connect,deadletter", "headers": ["redelivery-context", "__connect.errors.offset"]}',
    b'{"dialect": "deadletter", "attributes": ["deadletterretry", "deadletterreason"], "inserted": [3, 9]}',
    b'{"retyped": ["\\ud800", "t", 0, ""]}',
    b'{"retyped": ["\\ud800", "1.0", 0, ""]}',
    b'{"dialect": "json", "retyped": ["\\ud800", "t", 0, "\\"\\ud800\\""], "inserted": [0, 2147483647]}',
    b'{"wrapped": true, "hops": 2}',
    b'{"hops": 2147483647, "attempts_total": 2147483647}',
)
#: What says in an event's attribute which message it stands for.
ENVELOPES = (
    '"{"',
    '"[]"',
    '"{\\"headers\\": 5}"',
    '"{\\"headers\\": [[\\"\\\\ud800\\", \\"\\\\ud800\\"]], \\"id\\": 7}"',
    '"{\\"id\\": 7, \\"timestamp_ms\\": \\"x\\", \\"destination\\": [], \\"extra\\": {\\"a\\": {}}}"',
)


def objects(names: tuple[str, ...]) -> st.SearchStrategy[str]:
    """The text of an object with some of these members."""
    members = st.dictionaries(st.sampled_from(names), st.sampled_from(VALUES), max_size=4)
    return members.map(lambda found: "{" + ",".join(f'"{name}": {value}' for name, value in found.items()) + "}")


values = st.sampled_from(VALUES)
contexts = objects(FIELDS).map(lambda ours: f'{{"redelivery": {ours}}}') | objects(
    ("redelivery", "exception", "attempt", "time_of_error", "stages", "index", "record")
)
texts = (contexts | values).map(lambda text: text.encode("utf-8", "surrogatepass"))
marks = st.sampled_from(MARKS) | objects(MARK).map(str.encode)
_others = st.sampled_from(
    [f"__connect.errors.{each}" for each in ("topic", "partition", "offset", "task.id", "stage", "exception.message")]
    + [f"{p}{e}" for p in ("", "ce_", "ce-", "cloudEvents:") for e in ("deadletterretry", "knativeerrorcode", "time")]
    + ["knativeerrordata", "CC", "x-death", "a\0b", "", "\ud800"]
)
headers = st.tuples(
    st.lists(st.tuples(_others, st.none() | values.map(str.encode) | st.binary(max_size=9)), max_size=3),
    st.lists(st.tuples(st.just("redelivery-context"), texts), max_size=1),
    st.lists(st.tuples(st.just("redelivery-letter"), marks), max_size=1),
).map(lambda found: tuple(pair for several in found for pair in several))
_attributes = st.dictionaries(
    st.sampled_from(["time", "subject", "data", "data_base64", "datacontenttype", "x", "deadletterretry"]),
    values,
    max_size=3,
)


def _event(more: dict[str, str], kind: str, envelope: str | None) -> bytes:
    form = {"specversion": '"1.0"', "id": '"i"', "source": '"s"', "type": kind, **more}
    if envelope is not None:
        form["redeliverymessage"] = envelope
    return ("{" + ",".join(f'"{name}": {value}' for name, value in form.items()) + "}").encode()


bodies = st.builds(
    _event, _attributes, st.sampled_from(['"t"', '"redelivery.message"']), st.none() | st.sampled_from(ENVELOPES)
)
structured = st.builds(lambda body, more: Message(value=body, headers=(STRUCTURED, *more)), bodies, headers)
binary = st.builds(
    lambda value, more: Message(
        value=value, headers=(*((f"ce-{n}", b"1.0") for n in ("specversion", "id", "source", "type")), *more)
    ),
    st.none() | values.map(str.encode),
    headers,
)
raw = st.builds(
    lambda value, more: Message(value=value, headers=more), st.none() | values.map(str.encode) | st.binary(), headers
)
messages = raw | structured | binary
