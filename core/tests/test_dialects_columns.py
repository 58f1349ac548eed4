"""Letters of many rows by column: each is what `attach` makes of its row alone."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import hostile
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_dialects_properties import a_field, any_dialect, contexts, limits, messages, prefixes

from redelivery.base.secrets import redact, redact_all, remember
from redelivery.codes import Code
from redelivery.contract.broker import Letter, LetterBatch, Limits
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Header, Message
from redelivery.deadletters.trust import context_of, contexts_of
from redelivery.formats import dialects, events, identity
from redelivery.formats.dialects import _columns, _read_columns, _restoring
from redelivery.formats.dialects._writer import CONTEXT as CONTEXTS

KEY = b"a key that nobody else has"
CONTEXT = ErrorContext(
    reason="refused", kind="permanent", exception="X", stacktrace="frame\n" * 50, broker="b", destination="x:q", run="r"
)

LONG = replace(CONTEXT, reason="bad " * 200, stacktrace="frame\n" * 400)


@pytest.fixture(autouse=True, scope="module")
def _no_error_of_ours_is_hidden() -> Iterator[None]:
    def fail(*_: object) -> None:
        raise  # noqa: PLE0704 - inside the handler that would swallow it

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("redelivery.dialects"), "exception", fail)
        for module in (_read_columns, _restoring):  # also the rarest letter is read by column
            patch.setattr(module, "_FEWEST", 1)
        yield


@pytest.fixture(scope="module", params=[1, 3], ids=["every-shape", "frequent-shapes"])
def _fewest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Also the rarest shape is written by column."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_columns, "_FEWEST", request.param)
        yield


def row_by_row(
    batch: Batch, context: ErrorContext, varying: Mapping[str, Sequence[Any]], **options: Any
) -> list[Message]:
    own = [replace(context, **{name: values[row] for name, values in varying.items()}) for row in range(len(batch))]
    return [dialects.attach(message, each, **options) for message, each in zip(batch.rows(), own, strict=True)]


def assert_equal(batch: Batch, wanted: Sequence[Message]) -> None:
    """Extra columns that are null count as absent."""

    def plain(message: Message) -> Message:
        return replace(message, extra={name: value for name, value in message.extra.items() if value is not None})

    found = list(batch.rows())
    assert [plain(each) for each in found] == [plain(each) for each in wanted]
    assert [each.identity for each in found] == [each.identity for each in wanted]


# --- any message ---------------------------------------------------------------------------------------------------

KINDS = {item.name: a_field(item.name, str(item.type)) for item in fields(ErrorContext)}
SECRET = remember("a-remembered-value")
odd_texts = st.sampled_from(
    ["", "x" * 600, "é" * 2000, "\ud800", SECRET, "https://u:p4ssw0rd@h/?a", "token=abcdefg", "%s%b"]
)
for _name in ("message_id", "identity", "target", "reason", "stacktrace"):
    KINDS[_name] |= odd_texts
KINDS["extra"] |= st.dictionaries(odd_texts, odd_texts, max_size=2) | st.just({str(n): "v" for n in range(40)})
KINDS["position"] |= st.sampled_from([10**18, -(10**18), 2**63])
KINDS["source_offset"] |= st.sampled_from([10**17, 10**18, -(10**18), 0])


#: Texts as errors have them: one per row, or the same here and there.
told = (
    st.integers(0, 10**9).map("the message has {:,} bytes".format)
    | st.text(max_size=20)
    | odd_texts
    | st.sampled_from(
        [
            'a "quoted" \\ text, 100% {}',
            "two\nlines\tof it",
            "a\r\x00\x1f\x7f\x85\ufdd0 control",
            "\U0001f600 \u00e9 \ud83d\ude00",
            "x" * 768,
            "x" * 769,
            "\u00e9" * 385,
            "x" * 9000,
            "frame\n" * 7000,
            f"with {SECRET} in it",
            "amqp://u:p4ssw0rd@host/ refused",
            "password=hunter2, and more",
            "Bearer ABCDEFGHIJ0",
            "x" * 20_000 + " password=hunter2",
        ]
    )
)


@st.composite
def batches(draw: st.DrawFn, some: st.SearchStrategy[Message] = messages) -> Batch:
    """Rows that look alike, and others."""
    kinds = draw(st.lists(some, min_size=1, max_size=3))
    rows = []
    for number in range(draw(st.integers(1, 9))):
        message = draw(st.sampled_from(kinds))
        if draw(st.booleans()):
            message = replace(message, id=f"id-{number}", timestamp_ms=draw(st.none() | st.integers(-9, 9)))
        again = draw(st.sampled_from(["", "", "", "letter", "redriven", "wrapped", "retyped"]))
        if again:
            letter = dialects.attach(
                message,
                CONTEXT,
                dialect="json",
                limits=Limits(),
                prefix="ce-",
                wrapped=again == "wrapped",
                rename_type="other" if again == "retyped" else None,
            )
            message = dialects.redriven(letter) if again == "redriven" else letter
        rows.append(message)
    return Batch.of(rows)


@st.composite
def varied(draw: st.DrawFn, some: st.SearchStrategy[Message] = messages) -> tuple[Batch, dict[str, list[Any]]]:
    """Rows, and fields that differ by row."""
    batch = draw(batches(some))
    varying = {}
    for name in draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=5, unique=True)):
        values = draw(st.lists(KINDS[name], min_size=1, max_size=3))
        varying[name] = draw(st.lists(st.sampled_from(values), min_size=len(batch), max_size=len(batch)))
    for name, each in (("reason", told), ("stacktrace", st.none() | told)):
        if draw(st.booleans()):
            varying[name] = draw(st.lists(each, min_size=len(batch), max_size=len(batch)))
    return batch, varying


@pytest.mark.usefixtures("_fewest")
@given(
    varied(),
    contexts | st.just(LONG),
    any_dialect,
    prefixes,
    limits | st.just(Limits()) | st.just(Limits(message_bytes=5000)),
    st.sampled_from([None, KEY]),
    st.fixed_dictionaries(
        {},
        optional={
            "rename_type": st.sampled_from(["t", "other"]),
            "wrapped": st.booleans(),
            "include_message": st.booleans(),
            "configs": st.just({"url": "x:q", "password": "secret", "%s": "%b"}),
        },
    ),
)
@settings(deadline=None)
def test_letters_by_column_are_the_letters_of_their_rows(
    given_rows: tuple[Batch, dict[str, list[Any]]],
    context: ErrorContext,
    dialect: Any,
    prefix: str | None,
    limit: Limits,
    key: bytes | None,
    more: dict[str, Any],
) -> None:
    batch, varying = given_rows
    options = {"dialect": dialect, "prefix": prefix, "limits": limit, "key": key} | more
    letters = dialects.attach_all(batch, context, varying, **options)
    assert_equal(letters, row_by_row(batch, context, varying, **options))
    assert letters.nbytes == sum(each.nbytes for each in letters.rows())


@given(varied(hostile.messages), contexts, any_dialect)
@settings(deadline=None)
def test_hostile_messages_become_the_same_letters(
    given_rows: tuple[Batch, dict[str, list[Any]]], context: ErrorContext, dialect: Any
) -> None:
    batch, varying = given_rows
    options: dict[str, Any] = {"dialect": dialect, "prefix": "ce-", "limits": Limits(), "key": KEY}
    assert_equal(
        dialects.attach_all(batch, context, varying, **options), row_by_row(batch, context, varying, **options)
    )


@given(batches() | batches(hostile.messages), st.booleans(), st.sampled_from(["json", "binary"]), prefixes)
@settings(deadline=None)
def test_what_is_done_to_many_messages_is_done_to_each(
    batch: Batch, keep_type: bool, event_format: Any, prefix: str | None
) -> None:
    rows = list(batch.rows())
    assert_equal(
        dialects.strip_all(batch, keep_type=keep_type), [dialects.strip(each, keep_type=keep_type) for each in rows]
    )
    assert_equal(dialects.redriven_all(batch), list(map(dialects.redriven, rows)))
    assert dialects.histories(batch) == list(map(dialects.history, rows))
    assert_equal(
        events.reformat_all(batch, event_format, prefix),
        [events.reformat(each, event_format, prefix) for each in rows],
    )
    for asked in (None, ("knative", "json")):
        found = {row: each for each, several in dialects.chosen_all(asked, "json", batch).items() for row in several}
        assert found == {row: dialects.chosen(asked, "json", each) for row, each in enumerate(rows)}


@given(
    varied(), contexts, st.sampled_from([None, "t"]), st.dictionaries(st.sampled_from("ab"), st.integers() | st.none())
)
def test_identities_by_column_are_those_of_their_rows(
    given_rows: tuple[Batch, dict[str, list[Any]]],
    context: ErrorContext,
    destination: str | None,
    extra: dict[str, int | None],
) -> None:
    batch, varying = given_rows
    batch = Batch.of([replace(each, destination=destination, extra=extra) for each in batch.rows()])
    own = [replace(context, **{name: values[row] for name, values in varying.items()}) for row in range(len(batch))]
    wanted = [identity.of_letter(message, each, None) for message, each in zip(batch.rows(), own, strict=True)]
    assert identity.of_letters(batch, context, varying) == wanted


ALL_FIELDS = tuple(item.name for item in fields(ErrorContext))
some_fields = st.none() | st.lists(st.sampled_from(ALL_FIELDS), max_size=3, unique=True)


def assert_read(batch: Batch, names: Sequence[str] | None) -> None:
    """Fields read by column are those that are read row by row, and of the same types."""
    contexts = [dialects.read(each) or ErrorContext() for each in batch.rows()]
    wanted = {name: [getattr(each, name) for each in contexts] for name in (ALL_FIELDS if names is None else names)}
    found = dialects.read_all(batch, names)
    assert found == wanted
    assert [list(map(type, found[name])) for name in wanted] == [list(map(type, wanted[name])) for name in wanted]


@given(varied(), contexts, any_dialect, prefixes, limits | st.just(Limits()), st.sampled_from([None, KEY]), some_fields)
@settings(deadline=None)
def test_what_letters_say_is_read_by_column_as_row_by_row(
    given_rows: tuple[Batch, dict[str, list[Any]]],
    context: ErrorContext,
    dialect: Any,
    prefix: str | None,
    limit: Limits,
    key: bytes | None,
    names: list[str] | None,
) -> None:
    batch, varying = given_rows
    letters = dialects.attach_all(batch, context, varying, dialect=dialect, prefix=prefix, limits=limit, key=key)
    assert_read(letters, names)
    assert_equal(dialects.redriven_all(letters), [dialects.redriven(each) for each in letters.rows()])
    assert_signed(letters)


def assert_signed(batch: Batch) -> None:
    for keys in ([], [b"another key, of somebody else"], [b"another key, of somebody else", KEY]):
        assert dialects.are_signed(batch, keys) == [dialects.is_signed(each, keys) for each in batch.rows()]


JUNK = (b"", b"-5", b'"', b"\\", b"9" * 19, b"null", b"\xff", b',"code":"X"', b" ", b"\n")


def changed(header: Header, data: st.DataObject) -> Header:
    name, value = header
    if not value or name in dialects.MARKERS or data.draw(st.booleans()):
        return header
    at, length = data.draw(st.integers(0, len(value))), data.draw(st.integers(0, 5))
    return name, value[:at] + data.draw(st.sampled_from(JUNK)) + value[at + length :]


@given(varied(), st.data(), any_dialect, some_fields)
@settings(deadline=None)
def test_what_somebody_has_changed_in_letters_is_read_by_column_as_row_by_row(
    given_rows: tuple[Batch, dict[str, list[Any]]], data: st.DataObject, dialect: Any, names: list[str] | None
) -> None:
    batch, varying = given_rows
    letters = dialects.attach_all(batch, CONTEXT, varying, dialect=dialect, prefix="ce-", limits=Limits(), key=KEY)
    rows = [
        replace(letter, headers=tuple(changed(header, data) for header in letter.headers)) for letter in letters.rows()
    ]
    assert_read(Batch.of(rows), names)
    assert_signed(Batch.of(rows))


@given(batches(hostile.messages), some_fields)
@settings(deadline=None)
def test_hostile_letters_are_read_by_column_as_row_by_row(batch: Batch, names: list[str] | None) -> None:
    assert_read(batch, names)
    assert_signed(batch)


attributes = st.fixed_dictionaries(
    {"specversion": st.sampled_from([b"1.0", b"1.0", b"2"]), "source": st.sampled_from([b"/s", b""])},
    optional={
        "id": st.sampled_from([b"1", b"2", b"", b"\xff", None]),
        "type": st.just(b"t"),
        "time": st.sampled_from(
            [b"2024-01-31T12:00:00Z", b"2024-01-31T12:00:00", b"2024-02-31T12:00:00Z", b"", b"\xff"]
        ),
        "subject": st.sampled_from([b"s", b""]),
        "Odd-name": st.just(b"x"),
    },
)


@given(st.lists(st.tuples(attributes, st.sampled_from([(), (("content-type", b""),), (("ce-id", b"3"),)])), min_size=1))
def test_events_in_headers_are_recognised_by_column_as_row_by_row(
    found: list[tuple[dict[str, bytes | None], Any]],
) -> None:
    rows = [
        Message(value=b"{", headers=(*((f"ce-{name}", value) for name, value in given.items()), *more))
        for given, more in found
    ]
    assert events.events_in(Batch.of(rows)) == [events.event_in(each) is not None for each in rows]


natives = st.none() | st.sampled_from(
    [
        ErrorContext(kind="expired"),
        ErrorContext(kind="terminated", code=Code.UNKNOWN),
        ErrorContext(reason="told", hops=3),
    ]
)


@given(
    batches() | batches(hostile.messages),
    st.lists(natives, min_size=9, max_size=9),
    st.lists(st.sampled_from([True, False, None]), min_size=9, max_size=9) | st.just([None] * 9),
    some_fields,
)
@settings(deadline=None)
def test_what_counts_of_letters_is_read_by_column_as_row_by_row(
    batch: Batch, native: list[ErrorContext | None], signed: list[bool | None], names: list[str] | None
) -> None:
    letters = LetterBatch.of(
        [
            Letter(position=str(row), message=message, context=native[row], signed=signed[row])
            for row, message in enumerate(batch.rows())
        ]
    )
    contexts = [context_of(each) for each in letters.letters()]
    wanted = {name: [getattr(each, name) for each in contexts] for name in (ALL_FIELDS if names is None else names)}
    assert contexts_of(letters, names) == wanted


# --- examples ------------------------------------------------------------------------------------------------------

EVENT = tuple((f"ce_{name}", b"1.0") for name in ("specversion", "id", "source", "type"))
BODY = b'{"specversion":"1.0","id":"%d","source":"s","type":"t"}\n'


def plain_rows(count: int = 5) -> Batch:
    return Batch.of(
        [Message(value=b"v%d" % n, key=b"k", id=f"id-{n}", headers=(("user", b"%d" % n),)) for n in range(count)],
        number=7,
        isolate=True,
    )


@pytest.mark.parametrize("dialect", dialects.NAMES)
def test_positions_may_be_a_range_as_the_engine_gives_them(dialect: str, caplog: pytest.LogCaptureFixture) -> None:
    batch = Batch.of([Message(value=b"v", id=f"{number}") for number in range(100)])
    varying = {"position": range(7, 107)}
    options: dict[str, Any] = {"dialect": dialect, "limits": Limits(), "prefix": None}
    assert_equal(
        dialects.attach_all(batch, CONTEXT, varying, **options), row_by_row(batch, CONTEXT, varying, **options)
    )
    assert not caplog.records, "they were written one by one after an error"


@pytest.mark.parametrize("dialect", [*dialects.NAMES, ("connect", "knativeerror", "deadletter")])
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
@pytest.mark.parametrize("kind", ["plain", "redriven", "binary", "structured"])
def test_usual_rows_are_not_written_one_by_one(
    dialect: Any, key: bytes | None, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = list(plain_rows().rows())
    if kind == "redriven":
        rows = [
            dialects.redriven(dialects.attach(each, CONTEXT, dialect="json", limits=Limits(), prefix=None))
            for each in rows
        ]
    if kind == "binary":
        rows = [replace(each, headers=(*EVENT, *each.headers)) for each in rows]
    if kind == "structured":
        headers = (("content-type", b"application/cloudevents+json"),)
        rows = [replace(each, value=BODY % number, headers=headers) for number, each in enumerate(rows)]
    batch = Batch.of(rows)
    varying = {
        "message_id": [each.id for each in rows],
        "position": range(5),  # as the engine gives them
        "source_offset": list(range(5)),
        "target": [None, "a", "b", None, None],
        "extra": [{}, {"partition": "1", "a": "%"}, {"partition": "2"}, {}, {}],
        "attempts": [1, 1, 2, 1, 1],
        "first_failure_ms": [1, 2, 3, 4, 5],
        "reason": [f"the message has {n} bytes, \u00e9" for n in range(5)],
        "stacktrace": [None, *(f'File "{n}"\n' for n in range(4))],
    }
    options: dict[str, Any] = {"dialect": dialect, "limits": Limits(message_bytes=1 << 20), "prefix": "ce_", "key": key}
    wanted = row_by_row(batch, CONTEXT, varying, **options)
    monkeypatch.setattr(_columns, "_FEWEST", 1)
    alone: list[int] = []
    monkeypatch.setattr(_columns.Changes, "put", lambda _self, row, _message: alone.append(row))
    letters = dialects.attach_all(batch, CONTEXT, varying, **options)
    assert alone == []
    assert_equal(letters, wanted)
    assert not caplog.records, "they were written one by one after an error"


@pytest.mark.parametrize("dialect", [*dialects.NAMES, ("connect", "knativeerror", "deadletter")])
@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
@pytest.mark.parametrize("names", [None, ["code"], ["extra", "kind"], ["stacktrace", "reason"]], ids=str)
def test_usual_letters_are_not_read_one_by_one(
    dialect: Any, key: bytes | None, names: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = replace(CONTEXT, code=Code.TOO_LARGE, native_code='"E"', stage="TASK_PUT", component="a.B", partition=3)
    letters = dialects.attach_all(
        plain_rows(),
        context,
        {
            "message_id": ["a", "b", "\u00e9", "\ud800", 'd"'],
            "position": range(5),  # as the engine gives them
            "target": [None, "a", "b", None, None],
            "extra": [{}, {"partition": "1"}, {"partition": "2"}, {}, {}],
            "attempts": [1, 1, 2, 1, 1],
            "first_failure_ms": [1, 2, 3, 4, 5],
            "last_failure_ms": [1, 2, 3, 4, 5],
        },
        dialect=dialect,
        limits=Limits(),
        prefix="ce_",
        key=key,
    )
    contexts = [dialects.read(each) for each in letters.rows()]
    monkeypatch.setattr(Batch, "row", None)
    found = dialects.read_all(letters, names)
    assert found == {name: [getattr(each, name) for each in contexts] for name in names or ALL_FIELDS}


def test_names_that_somebody_chose_to_be_long_are_neither_compiled_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = dialects.attach_all(plain_rows(), CONTEXT, {}, dialect="json", limits=Limits(), prefix=None)
    ours = [(name, value or b"") for name, value in letters.row(0).headers]
    swollen = [
        (name, b'{"%b":1,' % (b"k" * 100_000) + value[1:] if name in CONTEXTS else value) for name, value in ours
    ]
    batch = Batch.of([Message(value=b"v", headers=tuple(swollen))] * 20)
    compiled: list[bytes] = []
    compile_ = re.compile
    monkeypatch.setattr(_read_columns.re, "compile", lambda said, *more: compiled.append(said) or compile_(said, *more))
    assert dialects.read_all(batch, ["reason"]) == {"reason": ["refused"] * 20}
    assert not [each for each in compiled if len(each) > 50_000]


def test_a_batch_of_letters_is_the_same_batch_otherwise() -> None:
    batch = plain_rows()
    letters = dialects.attach_all(batch, CONTEXT, {}, dialect="json", limits=Limits(), prefix=None)
    assert (letters.number, letters.isolate) == (7, True)
    assert letters.value is batch.value
    assert letters.key is batch.key


def test_rows_that_exceed_a_limit_are_cut_and_others_are_not() -> None:
    batch = plain_rows()
    big = replace(batch.row(3), value=b"v" * 3000)
    batch = Batch.of([big if row == 3 else each for row, each in enumerate(batch.rows())])
    options: dict[str, Any] = {"dialect": "json", "limits": Limits(message_bytes=3500), "prefix": None}
    letters = dialects.attach_all(batch, CONTEXT, {"position": list(range(5))}, **options)
    said = [dialects.read(each) for each in letters.rows()]
    assert [each is not None and each.truncated for each in said] == [False, False, False, True, False]


def test_numbers_that_header_text_does_not_give_back_are_in_json_too() -> None:
    varying = {"source_offset": [10**18 + row for row in range(5)]}
    options: dict[str, Any] = {"dialect": "connect", "limits": Limits(), "prefix": None}
    letters = dialects.attach_all(plain_rows(), CONTEXT, varying, **options)
    assert_equal(letters, row_by_row(plain_rows(), CONTEXT, varying, **options))


def test_a_long_stack_trace_of_one_row_does_not_mark_those_without_any_as_cut() -> None:
    varying = {"stacktrace": ["", "frame\n" * 400, None, "", ""]}
    options: dict[str, Any] = {"dialect": "connect", "limits": Limits(), "prefix": None}
    letters = dialects.attach_all(plain_rows(), CONTEXT, varying, **options)
    assert_equal(letters, row_by_row(plain_rows(), CONTEXT, varying, **options))


PARTS = (
    *[
        "secret",
        "passw",
        "passphrase",
        "token",
        "credential",
        "access",
        "key",
        "accessKey",
        "signature",
        "private.key",
        "key.pem",
        "external.id",
    ],
    *[
        "sas",
        "connection.string",
        "jaas",
        "oauthbearer.config",
        "bearer",
        "Basic",
        "env:N",
        "file:x",
        "http://",
        "amqp:",
        "@",
        "?",
        "#",
        "&",
        "%",
        "%73",
    ],
    *["=", ":", "<", ">", "'", '"', ";", ",", "*", "***", "A1b2C3d4E5", "u"],
    " ",
    "\n",
    "\u017f",
    "\u0130",
    "\u0131",
    "\u212a",
)


@given(
    st.lists(
        st.text(max_size=9)
        | odd_texts
        | st.sampled_from(
            [
                "bearer ABCDEFGHI",
                "<token>x",
                "<TO\u212aEN>x",
                "ba\u017fic 12345678A",
                "ba\u017f\u0131c 12345678A",
                "BAS\u0130C 12345678A",
                "pa\u017fsword:x",
                "Con_nection-String=a",
                "CONNECTION STRING=a",
                "x: http:u:p4ss@h",
                "http:h?%73ecret=x",
                "http:h#%73ecret=x",
                "a\"'=",
                'password="',
                '"',
                "password=",
                "token",
                "=env:NAME",
                ":x",
            ]
        )
        | st.lists(st.sampled_from(PARTS), max_size=6).map("".join)
    )
)
@settings(deadline=None)
def test_texts_are_redacted_at_once_as_they_are_one_by_one(texts: list[str]) -> None:
    assert redact_all(texts) == [redact(each) for each in texts]


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_an_event_in_another_encoding_spoils_no_letter(encoding: str, place: int) -> None:
    """Its context is read back, and the letters beside it are signed."""
    text = '{"specversion":"1.0","id":"i","source":"s","type":"t"}'
    rows = [Message(value=text.encode(), headers=(hostile.STRUCTURED,))] * 3
    rows.insert(place, replace(rows[0], value=text.encode(encoding)))
    options: dict[str, Any] = {"dialect": ("deadletter", "knativeerror"), "prefix": "ce-", "limits": Limits()}
    letters = dialects.attach_all(Batch.of(rows), CONTEXT, {}, **options, key=KEY)
    assert dialects.are_signed(letters, [KEY]) == [True] * 4
    assert dialects.read_all(letters, ["reason"]) == {"reason": ["refused"] * 4}
    assert list(dialects.strip_all(letters).rows()) == rows
    assert_equal(letters, row_by_row(Batch.of(rows), CONTEXT, {}, **options, key=KEY))


def test_what_looks_like_a_second_marker_stays_as_it_is() -> None:
    def of(number: int) -> Message:
        marks = (b'{"dialect":"json","inserted":[1,1]}', b'{"dialect":"json","inserted":[%d,1]}' % number)
        return Message(value=b"v", headers=tuple(("redelivery-letter", each) for each in marks))

    batch = Batch.of([of(number) for number in range(1, 4)])
    assert_equal(dialects.strip_all(batch), [dialects.strip(each) for each in batch.rows()])
    assert_equal(dialects.redriven_all(batch), [dialects.redriven(each) for each in batch.rows()])
