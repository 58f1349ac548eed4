"""Letters of other applications: what core carries along for them, and the ids that they keep."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redelivery.contract.broker import Capabilities, Letter, LetterBatch, Limits, Support
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Headers, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.deadletters.mended import Mark, Originals, marks_of
from redelivery.deadletters.operations import FORWARD, next_id, redrive_operation, sendable, sent_back
from redelivery.deadletters.trust import Targets
from redelivery.errors import Permanent
from redelivery.formats import dialects, identity
from redelivery.kit.letters import undecodable
from redelivery.sending.group import Group, Origin, Owner
from redelivery.sending.letters import LetterWriter, Reporter
from redelivery.spark.letter_rows import unpack

THERE = Capabilities(send=Support.NATIVE, ids=Support.NATIVE, headers=Support.NATIVE)
THEIRS = Message(value=b"v", id="theirs", headers=(("trace", b"1"),), native={"priority": 7})
OPERATION = redrive_operation(Targets(), 5)


def written(message: Message, context: ErrorContext, limits: Limits | None = None) -> Message:
    """A letter as we write it."""
    return dialects.attach(message, context, dialect="json", limits=limits or Limits(), prefix=None)


def stored(message: Message) -> Letter:
    return Letter(position="p", message=message)


# --- ids -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letter", "expected"),
    [
        (THEIRS, "theirs"),
        (written(THEIRS, ErrorContext(reason="no", subscriber="billing")), "theirs"),
        (written(THEIRS, ErrorContext(reason="no", kind="expired")), "theirs"),
        (written(THEIRS, ErrorContext(reason="no", kind="permanent")), "theirs~1"),
        (replace(THEIRS, id="theirs~1"), "theirs~1"),
    ],
    ids=["of another application", "of a subscription", "given up by its broker", "of a writer", "with such an id"],
)
def test_only_a_message_that_never_arrived_gets_an_id_of_its_hop(letter: Message, expected: str) -> None:
    assert sent_back(stored(letter), THERE).id == expected


def test_on_request_every_message_gets_an_id_of_its_hop() -> None:
    """By column and alone, and where it is mended."""
    asked = redrive_operation(Targets(), 5, new_ids=True)
    bare = replace(THEIRS, headers=())
    found = sendable(asked, LetterBatch.of([stored(THEIRS), stored(bare)]), THERE).messages
    assert found is not None
    assert [each.id for each in found.rows()] == ["theirs~1", "theirs~1"]
    (mark,) = marks_of(LetterBatch.of([stored(THEIRS)]), 0, 0, new_ids=True)
    assert not Mark.parse(mark).keeps_id
    kept = sendable(OPERATION, LetterBatch.of([stored(THEIRS), stored(bare)]), THERE).messages
    assert kept is not None
    assert [each.id for each in kept.rows()] == ["theirs", "theirs"]


@pytest.mark.parametrize(
    ("native", "elsewhere", "goes"),
    [(None, False, False), ({"raw": b"\xff"}, False, True), ({"raw": b"\xff"}, True, False)],
    ids=["nothing keeps it", "its plugin keeps it", "another plugin would lose it"],
)
@pytest.mark.parametrize("headers", [(), (("trace", b"1"),)], ids=["by column", "alone"])
def test_a_letter_that_cannot_be_read_whole_goes_only_where_it_arrives_whole(
    native: object, elsewhere: bool, goes: bool, headers: Headers
) -> None:
    letter = Letter(
        position="p",
        message=Message(value=b"", id="a", headers=headers, native=native),
        context=undecodable("their", "its body is no data section"),
    )
    found = sendable(redrive_operation(Targets(), 5, elsewhere=elsewhere), LetterBatch.of([letter]), THERE)
    assert len(found.going) == goes
    assert found.left == (
        [] if goes else ["it cannot be read whole, so it would arrive altered (its body is no data section)"]
    )


def test_a_message_that_we_have_named_is_named_again() -> None:
    first = sent_back(stored(written(THEIRS, ErrorContext(reason="no", kind="permanent"))), THERE)
    assert sent_back(stored(first), THERE).id == "theirs~2"
    assert next_id("order~1", 1, named=0, unsent=False) == "order~1", "another application's name"


@given(
    name=st.from_regex(r"[a-z]{0,2}(~[0-4]){0,3}", fullmatch=True).filter(bool),
    deaths=st.lists(st.sampled_from(["theirs", "received", "unknown"]), min_size=1, max_size=5),
    way=st.sampled_from(["alone", "by column", "mended"]),
)
def test_an_applications_own_id_is_never_taken_for_one_of_ours(name: str, deaths: list[str], way: str) -> None:
    """Whatever it ends with, and however often and in whatever way it dies and goes back."""
    message = replace(THEIRS, id=name, native=None)
    for death in deaths:
        letter = stored(_died(message, "received" if way == "mended" and death == "unknown" else death))
        message = _back(letter, way)
        assert message.id == name
    assert dialects.history(message).hops == len(deaths)
    last = sent_back(stored(_died(message, "failed")), THERE)
    assert last.id == f"{name}~{len(deaths) + 1}", "a message of ours, which a job could not send"
    again_dead = sent_back(stored(_died(last, "failed")), THERE)
    assert again_dead.id == f"{name}~{len(deaths) + 2}"


def _died(message: Message, how: str) -> Message:
    if how == "theirs":  # its application has moved it, or the broker
        return message
    context = ErrorContext(reason="no", kind="permanent", maybe_delivered=how == "unknown")
    if how == "received":
        context = replace(context, subscriber="billing")
    return written(dialects.strip(message), context)


def _back(letter: Letter, way: str) -> Message:
    if way == "alone":
        return sent_back(letter, THERE)
    letters = LetterBatch.of([letter, letter])
    if way == "by column":
        found = sendable(OPERATION, letters, THERE).messages
        assert found is not None
        return found.row(1)
    (mark, _) = marks_of(letters, 0, 0)
    row = unpack(letter, Targets(), THERE)
    headers = tuple((each["key"], each["value"]) for each in row["headers"])
    mended = Message(value=row["value"], id=row["id"], headers=headers)
    return Originals(lambda: iter([letters])).restored(Batch.of([mended]), [mark], deduplicates=False).row(0)


def test_a_letter_that_was_cut_to_its_least_still_keeps_its_id() -> None:
    limits = Limits(headers_bytes=150)
    letter = written(THEIRS, ErrorContext(reason="x" * 1000, subscriber="billing", destination="d" * 500), limits)
    assert dialects.read(letter) is not None
    assert sent_back(stored(letter), THERE).id == "theirs"


def test_an_identity_differs_at_each_hop_only_where_the_broker_de_duplicates() -> None:
    there = replace(THERE, deduplicate=Support.NATIVE)
    first = sent_back(stored(THEIRS), there)
    second = sent_back(stored(first), there)
    assert first.id == second.id == "theirs"
    assert len({first.identity, second.identity, identity.of_message(THEIRS), "theirs", None}) == 4
    assert sent_back(stored(THEIRS), THERE).identity is None


# --- native parts --------------------------------------------------------------------------------------------------


def test_a_letter_is_written_with_what_its_message_had() -> None:
    """By column and alone, plain and wrapped, also from a batch of which some rows have none."""
    reporter = Reporter(origin=Origin(run="r"), broker="b", component="c", destination="d")
    writer = LetterWriter(spec=DeliverySpec(), capabilities=THERE, configs={}, reporter=lambda: reporter)
    for wrapped in (False, True):
        rows = Batch.of([THEIRS, replace(THEIRS, native=None), THEIRS, THEIRS, THEIRS, THEIRS])
        group = Group(rows=rows, errors=[Permanent("no")], positions=range(6), wrapped=wrapped)
        letters = writer.letters(group)
        assert [each.native for each in letters.rows()] == [THEIRS.native, None, *[THEIRS.native] * 4]
        assert [dialects.strip(each).native for each in letters.rows()] == [each.native for each in letters.rows()]


def test_a_forwarded_letter_keeps_it() -> None:
    letter = Letter(position="p", message=THEIRS, context=ErrorContext(reason="late", kind="expired"))
    found = sendable(FORWARD, LetterBatch.of([letter]), THERE).messages
    assert found is not None
    assert found.row(0).native == THEIRS.native


def test_it_counts_in_what_is_in_flight() -> None:
    class Large:
        nbytes = 1000

    assert replace(THEIRS, native=Large()).nbytes == THEIRS.nbytes + 1000


# --- mended --------------------------------------------------------------------------------------------------------


def letters(*natives: object) -> LetterBatch:
    return LetterBatch.of(
        [
            Letter(position=f"p{at}", message=replace(THEIRS, id=f"i{at}", native=native))
            for at, native in enumerate(natives)
        ]
    )


def rows_of(marks: list[str]) -> Batch:
    """What an encoder makes of the rows of letters."""
    headers = sent_back(stored(THEIRS), THERE).headers
    ids = [f"i{Mark.parse(each).ordinal}~1" for each in marks]
    return Batch.of([Message(value=b"mended", id=name, headers=headers) for name in ids])


def restored(found: LetterBatch, rows: Batch, marks: list[str], *, deduplicates: bool = False) -> Batch:
    """Return the messages that a redrive makes of rows whose letters are found."""
    originals = Originals(lambda: iter([found]))
    originals.expect(marks)
    assert all(originals.found(marks))
    return originals.restored(rows, marks, deduplicates=deduplicates)


def test_a_mended_row_has_the_id_and_the_native_part_of_its_letter() -> None:
    found = letters("a", None, "c")
    marks = marks_of(found, 0, 0)
    sent = restored(found, rows_of(marks), marks)
    assert [(each.value, each.id, each.native) for each in sent.rows()] == [
        (b"mended", "i0", "a"),
        (b"mended", "i1", None),
        (b"mended", "i2", "c"),
    ]


def test_a_destination_that_de_duplicates_knows_a_mended_row_by_its_hop() -> None:
    marks = marks_of(letters("a"), 0, 0)
    sent = restored(letters("a"), rows_of(marks), marks, deduplicates=True)
    assert (sent.row(0).id, sent.row(0).identity) == ("i0", "i0~1")


def test_an_id_that_was_mended_stays() -> None:
    marks = marks_of(letters(None), 0, 0)
    rows = Batch.of([replace(rows_of(marks).row(0), id="another")])
    sent = Originals(lambda: iter([])).restored(rows, marks, deduplicates=False)
    assert sent.row(0).id == "another"


def test_a_mark_travels_as_a_text() -> None:
    mark = Mark(3, 7, "0" * 24, "a-b\n-c", keeps_id=True, has_native=True)
    assert Mark.parse(str(mark)) == mark
    assert pickle.loads(pickle.dumps(THEIRS)).native == THEIRS.native  # noqa: S301 - our own


def test_a_received_message_keeps_its_native_part_in_its_letter() -> None:
    class Lease(Owner):
        subscriber = "billing"

    reporter = Reporter(origin=Origin(run="r"), broker="b", component="c", destination="d")
    writer = LetterWriter(spec=DeliverySpec(), capabilities=THERE, configs={}, reporter=lambda: reporter)
    group = Group(rows=THEIRS, errors=[Permanent("no")], owner=Lease())
    (letter,) = writer.letters(group).rows()
    back = sent_back(stored(letter), THERE)
    assert (back.id, back.native) == (THEIRS.id, THEIRS.native)
    assert [name for name, _ in back.headers] == ["trace", dialects.MARKERS[0]]
