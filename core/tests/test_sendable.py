"""What a redrive sends of a batch of letters is what it sends of each letter, whatever the letters hold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_dialects_properties import contexts, messages

from redelivery.codes import Code
from redelivery.contract.broker import Capabilities, Letter, Limits, Support
from redelivery.contract.context import UNRESOLVED, ErrorContext
from redelivery.contract.letters import LetterBatch
from redelivery.contract.message import Message
from redelivery.deadletters.operations import (
    FORWARD,
    LetterOperation,
    mendable,
    redrive_operation,
    sendable,
)
from redelivery.deadletters.trust import Targets, context_of
from redelivery.formats import dialects
from redelivery.formats.dialects import again

THERE = Capabilities(
    send=Support.NATIVE, ids=Support.NATIVE, columns={"partition": int, "exchange": str}, routes=frozenset({"exchange"})
)
OPERATION = redrive_operation(Targets(allowed=("orders-*",)), 5)
PLAIN = ErrorContext(reason="full", kind="permanent", code=Code.REJECTED, attempts=3, attempts_total=3, run="r")

#: What only a broker knows of a letter.
NATIVE = [ErrorContext(kind="expired"), ErrorContext(kind="expired", target="elsewhere", message_id="m")]

modest = contexts | st.builds(
    ErrorContext,
    reason=st.text(max_size=5),
    attempts_total=st.integers(0, 3),
    hops=st.integers(0, 6),
    target=st.none() | st.sampled_from(["orders-a", "elsewhere"]),
    maybe_delivered=st.booleans(),
    message_id=st.none() | st.just("m"),
    subscriber=st.none() | st.just("billing"),
    kind=st.sampled_from(["permanent", "expired", "terminated"]),
)


@st.composite
def letters(draw) -> Letter:
    message = replace(
        draw(messages),
        id=draw(st.none() | st.sampled_from(["a", "b~1", "c~2"])),
        destination=draw(st.none() | st.sampled_from(["orders-a", "elsewhere"])),
        extra=draw(st.dictionaries(st.sampled_from(["partition", "other"]), st.integers(0, 3), max_size=2)),
        native=draw(st.none() | st.just("theirs")),
    )
    if draw(st.booleans()):
        dialect = draw(st.sampled_from([*dialects.NAMES, ("json", "knativeerror")]))
        message = dialects.attach(message, draw(modest), dialect=dialect, limits=Limits(), prefix="ce_")
    if draw(st.integers(0, 3)) == 0:
        message = replace(message, headers=())
    native = draw(st.none() | st.sampled_from(NATIVE))
    return Letter(position="", message=message, context=native, signed=draw(st.none() | st.booleans()))


def one_by_one(operation: LetterOperation, found: list[Letter], there: Capabilities) -> list[Message | str]:
    def sent(letter: Letter) -> Message | str:
        context = context_of(letter)
        why = operation.why_left(letter, there, context)
        return operation.prepare(letter, there, context) if why is None else why

    return [sent(letter) for letter in found]


def as_a_batch(operation: LetterOperation, found: list[Letter], there: Capabilities) -> list[Message | str]:
    done = sendable(operation, LetterBatch.of(found), there)
    sent = [] if done.messages is None else list(done.messages.rows())
    assert len(sent) == len(done.going)
    going, left = dict(zip(done.going, sent, strict=True)), iter(done.left)
    return [going[index] if index in going else next(left) for index in range(len(found))]


def whole(each: Message | str) -> object:
    """With its identity and native part, which are not its content; a column that is null is an absent one."""
    if isinstance(each, str):
        return each
    return replace(each, extra={n: v for n, v in each.extra.items() if v is not None}), each.identity, each.native


def a_letter(message: Message, context: ErrorContext = PLAIN, dialect: str = "json") -> Letter:
    return Letter(position="", message=dialects.attach(message, context, dialect=dialect, limits=Limits(), prefix=None))


@given(st.lists(letters(), min_size=1, max_size=6))
@example([a_letter(Message(value=b"v", id="a")), a_letter(Message(value=None, id="b"), dialect="connect")])
@example([a_letter(Message(value=b"v", id="a", headers=(("ce_type", b"t"),)))])
@example([a_letter(Message(value=b"v", id="a"), replace(PLAIN, target="elsewhere"))])
@settings(max_examples=400, deadline=None)
def test_letters_are_sent_back_by_column_as_they_are_one_by_one(found: list[Letter]) -> None:
    for there in (THERE, replace(THERE, deduplicate=Support.NATIVE)):
        expected, got = one_by_one(OPERATION, found, there), as_a_batch(OPERATION, found, there)
        assert list(map(whole, got)) == list(map(whole, expected))


def test_a_letter_without_an_id_needs_a_look_only_where_an_id_arrives() -> None:
    """Kafka has none: its letters would all be looked at one by one."""
    batch = LetterBatch.of([a_letter(Message(value=b"v"), replace(PLAIN, message_id="order-7"))])
    sent = sendable(OPERATION, batch, THERE).messages
    assert sent is not None
    assert sent.row(0).id == "order-7~~1"
    without = replace(THERE, ids=Support.NONE)
    nameless = sendable(OPERATION, batch, without).messages
    assert nameless is not None
    assert replace(sent.row(0), id=None) == nameless.row(0)


@pytest.mark.parametrize("dialect", ["json", "connect"])
def test_letters_of_one_cause_need_no_look_of_their_own(dialect: str) -> None:
    batch = LetterBatch.of([a_letter(Message(value=b"v", id=str(at)), dialect=dialect) for at in range(3)])
    assert None not in again.plain(batch.messages)


@pytest.mark.parametrize(
    "context", [replace(PLAIN, target="t"), replace(PLAIN, maybe_delivered=True), replace(PLAIN, extra={"a": "b"})]
)
def test_what_goes_into_the_message_is_looked_at(context: ErrorContext) -> None:
    batch = LetterBatch.of([a_letter(Message(value=b"v", id="a"), context)])
    assert again.plain(batch.messages) == [None]


def test_a_field_that_hides_behind_an_escape_is_looked_at() -> None:
    letter = a_letter(Message(value=b"v", id="a"), replace(PLAIN, target="elsewhere"))
    hidden = tuple(
        (name, (value or b"").replace(b'"target"', b'"t\\u0061rget"')) for name, value in letter.message.headers
    )
    letter = replace(letter, message=replace(letter.message, headers=hidden))
    assert context_of(letter).target == "elsewhere"
    assert again.plain(LetterBatch.of([letter]).messages) == [None]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_a_field_that_hides_in_another_encoding_is_looked_at(encoding: str) -> None:
    letter = a_letter(Message(value=b"v", id="a"), replace(PLAIN, target="elsewhere"))
    hidden = tuple(
        (name, value.decode().encode(encoding) if value and b'"target"' in value else value)
        for name, value in letter.message.headers
    )
    letter = replace(letter, message=replace(letter.message, headers=hidden))
    assert context_of(letter).target == "elsewhere"
    assert again.plain(LetterBatch.of([letter]).messages) == [None]


def test_a_letter_that_only_points_to_its_message_is_never_sent() -> None:
    """By no way: not with its context in a batch, not mended, not forwarded."""
    context = ErrorContext(kind=UNRESOLVED, code=Code.EXPIRED, native_code="deleted", reason="its message is gone")
    pointer, plain = Letter(position="1", message=Message(value=None), context=context), a_letter(Message(value=b"v"))
    for operation in (OPERATION, FORWARD):
        (why,) = as_a_batch(operation, [pointer], THERE)
        assert why == "it only points to its message, which cannot be read (deleted)"
    assert as_a_batch(OPERATION, [plain, pointer, plain], THERE)[1] == why
    batch = LetterBatch.of([plain, pointer])
    assert list(mendable(batch, range(2), THERE, Targets(), 5)) == [(0, None), (1, why)]
