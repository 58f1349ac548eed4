"""What a broker recognises a message by: the same for the very same thing, another for anything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.broker import Letter, Limits, Received, Source
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.formats import dialects, identity
from redelivery.formats.events import reformat

MESSAGE = Message(
    value=b'{"n": 1}', key=b"k", headers=(("a", b"1"), ("b", None)), id="i", timestamp_ms=1, extra={"partition": 3}
)
CONTEXT = ErrorContext(destination="kafka:orders", run="run-1", subscriber=None, partition=0, position=7)
RECEIVED = Received(message=MESSAGE, attempt=1, lease=None, position="12", lasting=True)
EVENT = Message(
    value=b"{}",
    id="i",
    headers=(("ce-specversion", b"1.0"), ("ce-type", b"t"), ("ce-source", b"/a"), ("ce-id", b"i")),
)


def test_the_identity_of_a_letter_is_the_same_in_every_version_of_this_library() -> None:
    """A letter that is sent by one and again by the next, after an update, is one."""
    assert identity.of_letter(MESSAGE, CONTEXT, None) == "i-22a96e3d5ea6dc313cb9aede2b801c5a"
    assert identity.of_letter(MESSAGE, CONTEXT, RECEIVED) == "i-df76fdc159829cf116ea002f021c56c0"
    assert identity.of_redriven(MESSAGE) == "i-5305f0ddd623d35c5c5fb34ae1971e06"


@pytest.mark.parametrize("id_", ["i" * 81, "\ud800", "a\nb", "é"])
def test_a_letter_whose_id_some_broker_may_refuse_has_an_identity_without_it(id_: str) -> None:
    assert len(identity.of_letter(replace(MESSAGE, id=id_), CONTEXT, None)) == 32
    assert len(identity.of_redriven(replace(MESSAGE, id=id_)) or "") == 32


OTHERS: dict[str, Callable[[], tuple[Message, ErrorContext, Received | None]]] = {
    "id": lambda: (replace(MESSAGE, id="j"), CONTEXT, None),
    "key": lambda: (replace(MESSAGE, key=None), CONTEXT, None),
    "value": lambda: (replace(MESSAGE, value=b"{}"), CONTEXT, None),
    "headers": lambda: (replace(MESSAGE, headers=(("a", b"1"), ("b", b""))), CONTEXT, None),
    "timestamp": lambda: (replace(MESSAGE, timestamp_ms=2), CONTEXT, None),
    "extra": lambda: (replace(MESSAGE, extra={"partition": 4}), CONTEXT, None),
    "its-own-target": lambda: (replace(MESSAGE, destination="elsewhere"), CONTEXT, None),
    "destination": lambda: (MESSAGE, replace(CONTEXT, destination="kafka:others"), None),
    "run": lambda: (MESSAGE, replace(CONTEXT, run="run-2"), None),
    "subscriber": lambda: (MESSAGE, replace(CONTEXT, subscriber="billing"), None),
    "life": lambda: (dialects.redriven(MESSAGE), CONTEXT, None),
    "lease": lambda: (MESSAGE, CONTEXT, RECEIVED),
    "another-lease": lambda: (MESSAGE, CONTEXT, replace(RECEIVED, position="13")),
    "coordinates": lambda: (MESSAGE, CONTEXT, replace(RECEIVED, source=Source(topic="t", partition=1, offset=2))),
}


def test_whatever_makes_a_letter_another_one_gives_it_another_identity() -> None:
    names = {identity.of_letter(*other()) for other in OTHERS.values()} | {identity.of_letter(MESSAGE, CONTEXT, None)}
    assert len(names) == len(OTHERS) + 1


@pytest.mark.parametrize(
    "later",
    [
        {"attempts": 9, "attempts_total": 12},
        {"first_failure_ms": 5, "last_failure_ms": 6},
        {"reason": "another text", "code": "X", "kind": "ambiguous", "exception": "E", "stacktrace": "s"},
        {"partition": 4, "position": 99},
        {"source_topic": "orders", "broker": "kafka", "query": "q", "batch": "1"},
    ],
    ids=lambda later: next(iter(later)),
)
def test_the_same_row_that_fails_again_in_its_run_is_the_same_letter(later: dict[str, object]) -> None:
    """A retried task may get its rows in another order, and each attempt fails at its own time, with its own words."""
    again = replace(CONTEXT, **later)  # type: ignore[arg-type]
    assert identity.of_letter(MESSAGE, again, None) == identity.of_letter(MESSAGE, CONTEXT, None)


def test_rows_without_an_id_are_told_apart_by_where_they_stand() -> None:
    nameless = replace(MESSAGE, id=None)
    names = {identity.of_letter(nameless, replace(CONTEXT, position=at), None) for at in (7, 8)}
    assert len(names) == 2


def test_a_position_that_does_not_last_tells_only_what_has_no_id() -> None:
    """RabbitMQ numbers deliveries: a message that is given again after a crash has another number."""
    passing = [replace(RECEIVED, lasting=False, position=at) for at in ("1", "2")]
    assert len({identity.of_letter(MESSAGE, CONTEXT, each) for each in passing}) == 1
    assert len({identity.of_letter(replace(MESSAGE, id=None), CONTEXT, each) for each in passing}) == 2


def test_what_has_neither_an_id_nor_a_position_that_lasts_is_never_taken_for_another() -> None:
    """Such a position may be another message's tomorrow: rather a letter twice than none."""
    nameless = replace(MESSAGE, id=None)
    passing = replace(RECEIVED, message=nameless, lasting=False)
    assert len({identity.of_letter(nameless, CONTEXT, passing) for _ in range(2)}) == 2


def test_events_of_one_id_and_different_source_are_two_in_either_mode() -> None:
    other = replace(EVENT, headers=tuple((n, b"/b" if n == "ce-source" else v) for n, v in EVENT.headers))
    names = [identity.of_message(each) for each in (EVENT, other)]
    assert names == ["2 /a i", "2 /b i"]
    assert [identity.of_message(reformat(each, "json", None)) for each in (EVENT, other)] == names


@pytest.mark.parametrize(
    "message",
    [MESSAGE, replace(EVENT, id=None), replace(EVENT, headers=EVENT.headers[:-1]), Message(value=b"{}", id="i")],
    ids=["raw", "without-an-id", "malformed", "without-headers"],
)
def test_what_is_no_event_is_recognised_by_its_id(message: Message) -> None:
    assert identity.of_message(message) is None


def test_an_identity_that_was_given_stays() -> None:
    assert identity.of_message(replace(EVENT, identity="mine")) == "mine"


def test_the_identities_of_a_batch_are_computed_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Message] = []
    monkeypatch.setattr(identity, "source_of", lambda message: asked.append(message) or "/s")
    batch = identity.identified(Batch.of([EVENT, MESSAGE]))
    assert not asked
    assert batch.identity is not None
    assert batch.identity.values == ["2 /s i", "2 /s i"]
    assert batch.row(1).identity == "2 /s i"
    assert identity.identified(batch) is batch


@given(st.lists(st.tuples(st.text(), st.text()), min_size=2, max_size=2, unique=True))
def test_no_two_events_share_an_identity(events: list[tuple[str, str]]) -> None:
    assert len({identity.of_event(*each) for each in events}) == 2


_messages = st.builds(
    Message,
    value=st.none() | st.binary(max_size=3),
    key=st.none() | st.binary(max_size=3),
    headers=st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=2)), max_size=2).map(tuple),
    id=st.text(max_size=2),
    timestamp_ms=st.none() | st.integers(0, 3),
    destination=st.none() | st.text(max_size=2),
    extra=st.dictionaries(st.sampled_from("ab"), st.integers(0, 2) | st.text(max_size=1) | st.binary(max_size=1)),
)


@given(_messages, _messages)
def test_two_letters_share_an_identity_only_where_they_say_the_same(one: Message, other: Message) -> None:
    for of in (identity.of_redriven, lambda message: identity.of_letter(message, CONTEXT, None)):
        assert (of(one) == of(other)) == (one == other)


def test_a_letter_that_shares_an_id_and_differs_is_another_message_when_it_is_sent_back() -> None:
    assert identity.of_redriven(MESSAGE) == identity.of_redriven(replace(MESSAGE))
    assert identity.of_redriven(MESSAGE) != identity.of_redriven(replace(MESSAGE, value=b"other"))
    assert identity.of_redriven(replace(MESSAGE, id=None)) is None, "no broker recognises what has no id"


def test_what_may_have_arrived_is_sent_back_as_what_it_was() -> None:
    assert identity.of_unchanged(MESSAGE, CONTEXT) is None, "by its id"
    assert identity.of_unchanged(MESSAGE, replace(CONTEXT, identity="2 /a i")) == "2 /a i"
    cut = identity.of_unchanged(MESSAGE, replace(CONTEXT, identity="2 /a", truncated=True))
    assert cut not in {None, "2 /a"}, "what was cut may be another's"


def test_events_of_one_id_that_may_have_arrived_are_two_also_where_no_sender_asked_for_their_identity() -> None:
    """They may go to another broker than the first, one that de-duplicates."""
    other = replace(EVENT, headers=tuple((n, b"/b" if n == "ce-source" else v) for n, v in EVENT.headers))
    assert [identity.of_unchanged(each, CONTEXT) for each in (EVENT, other)] == ["2 /a i", "2 /b i"]


@pytest.mark.parametrize("dialect", dialects.NAMES)
def test_a_letter_keeps_what_its_message_was_recognised_by(dialect: str) -> None:
    context = replace(CONTEXT, identity="27 https://user:pw@example.org/ i")
    letter = dialects.attach(MESSAGE, context, dialect=dialect, limits=Limits(), prefix=None)
    found = dialects.read(letter)
    assert found is not None
    assert found.identity == context.identity


def test_what_a_broker_dead_lettered_itself_is_known_by_where_it_lies() -> None:
    letters = [Letter(position=at, message=MESSAGE, dead_lettered_ms=1) for at in ("1", "1", "2")]
    first, again, other = map(identity.of_forwarded, letters)
    assert first == again != other
