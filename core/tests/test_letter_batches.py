"""Letters as columns are the same letters, in the same order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.broker import Letter, LetterBatch
from redelivery.contract.context import ErrorContext
from redelivery.contract.letters import BATCH_LETTERS, batches
from redelivery.contract.message import Batch, Message

_BYTES = st.none() | st.binary(max_size=20)
MESSAGES = st.builds(
    Message,
    value=_BYTES,
    key=_BYTES,
    headers=st.lists(st.tuples(st.text(max_size=5), _BYTES), max_size=3).map(tuple),
    id=st.none() | st.text(max_size=5),
    destination=st.none() | st.text(max_size=5),
    timestamp_ms=st.none() | st.integers(),
    extra=st.dictionaries(st.sampled_from(["partition", "exchange"]), st.integers(0, 9)),
    identity=st.none() | st.text(max_size=5),
)
LETTERS = st.builds(
    Letter,
    position=st.text(),
    message=MESSAGES,
    context=st.none() | st.builds(ErrorContext, reason=st.text(max_size=5)),
    dead_lettered_ms=st.none() | st.integers(0, 10**12),
    signed=st.none() | st.booleans(),
)


@given(st.lists(LETTERS, min_size=1, max_size=10), st.data())
def test_letters_come_out_of_their_columns_as_they_went_in(letters: list[Letter], data: st.DataObject) -> None:
    batch = LetterBatch.of(letters)
    assert list(batch.letters()) == letters
    some = data.draw(st.lists(st.integers(0, len(letters) - 1), min_size=1))
    assert list(batch.take(some).letters()) == [letters[index] for index in some]


@given(st.lists(MESSAGES, min_size=1, max_size=10), st.data())
def test_some_rows_of_a_batch_are_those_rows(messages: list[Message], data: st.DataObject) -> None:
    batch = Batch.of(messages)
    some = data.draw(st.lists(st.integers(0, len(messages) - 1), min_size=1))
    taken = batch.take(some)
    assert len(taken) == len(some)
    assert list(taken.rows()) == [batch.row(index) for index in some]
    assert [each.identity for each in taken.rows()] == [batch.row(index).identity for index in some]


def test_batches_of_letters_are_bounded() -> None:
    letters = [Letter(position=str(number), message=Message(value=b"")) for number in range(BATCH_LETTERS + 1)]
    assert [len(each) for each in batches(letters)] == [BATCH_LETTERS, 1]
    large = [Letter(position=str(number), message=Message(value=b"v" * (9 << 20))) for number in range(3)]
    assert [len(each) for each in batches(large)] == [2, 1]
    assert list(batches([])) == []
