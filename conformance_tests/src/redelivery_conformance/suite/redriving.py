"""Redrive: a letter is sent back under its own id, confirmed there, and only then removed from its place."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from redelivery.contract.broker import Accept, Broker, DeadLetters, Letter, LetterBatch, Sender, Terminate, Wanted
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Message
from redelivery.deadletters.journal import Journal
from redelivery.deadletters.operations import HOP_MARK
from redelivery.deadletters.patching import Patch
from redelivery.deadletters.queue import DeadLetterQueue, dead_letters
from redelivery.deadletters.redrive import RedriveReport, RedriveSettings
from redelivery.deadletters.selection import Selection
from redelivery.errors import Retriable
from redelivery.formats import dialects
from redelivery.policy.waves import Waves
from redelivery_conformance.forking import KILLED, in_a_fork
from redelivery_conformance.statements import Statements, broker_has, broker_lacks
from redelivery_conformance.subject import GRACE, Subject
from redelivery_conformance.suite.letters import CONTEXT, original
from redelivery_conformance.suite.receiving import numbered
from redelivery_conformance.taking import Taker

#: The capabilities that redrive needs at a place of letters.
NEEDS = ("send", "browse", "remove", "dead_letter", "headers")


class Killed(Retriable):
    """Stands for the death of the process."""


def _die(*_: object) -> None:
    os._exit(KILLED)


class Redriving(Statements):
    """`redelivery.dead_letters(url).redrive()` over this broker's roles."""

    @broker_has(*NEEDS)
    def test_a_redriven_letter_is_back_at_work_and_gone_from_its_place(self, subject: Subject) -> None:
        """It returns as it was sent, with its bytes, key and own headers, and without our context."""
        self._bury(subject, original(subject))
        with self._box(subject) as dlq:
            report = dlq.redrive()
        assert (report.considered, report.redriven, report.removed, report.failed) == (1, 1, 1, 0)
        assert not subject.browse(direct=False)
        (there,) = subject.place.stored()
        sent = original(subject)
        assert (there.value, there.key) == (sent.value, sent.key)
        assert [each for each in there.headers if each in sent.headers] == list(sent.headers)
        assert dialects.read(there) is None, "the error context came along"

    @broker_has(*NEEDS)
    def test_totals_and_hops_survive_each_redrive(self, subject: Subject) -> None:
        message, total = original(subject), 0
        for hop in (1, 2, 3):
            total += 3
            self._bury(subject, message, replace(CONTEXT, hops=hop - 1, attempts_total=total))
            with self._box(subject) as dlq:
                assert dlq.redrive().removed == 1
            message = next(each for each in subject.place.stored() if dialects.history(each).hops == hop)
            assert dialects.history(message) == dialects.DeliveryHistory(attempts_total=total, hops=hop)

    @broker_has(*NEEDS, "ids")
    def test_each_hop_has_an_id_of_its_own(self, subject: Subject) -> None:
        self._bury(subject, original(subject), replace(CONTEXT, hops=0))
        with self._box(subject) as dlq:
            dlq.redrive()
        (there,) = subject.place.stored()
        assert there.id == f"{original(subject).id}{HOP_MARK}1"
        self._bury(subject, there, replace(CONTEXT, hops=1))
        with self._box(subject) as dlq:
            dlq.redrive()
        names = {message.id for message in subject.place.stored()}
        assert f"{original(subject).id}{HOP_MARK}2" in names, names

    @broker_has(*NEEDS, "receive", "terminate", "deduplicate")
    def test_a_redriven_letter_is_not_taken_for_the_message_that_it_was(self, subject: Subject) -> None:
        """The broker still remembers its id: under that id it would drop the redriven message as a duplicate."""
        subject.provision()
        subject.deliver(original(subject))
        taker = Taker(subject)
        received = taker.one()
        taker.settle(Terminate(self._letter(subject, received.message, CONTEXT)), received)
        with self._box(subject) as dlq:
            assert dlq.redrive().redriven == 1
        again = taker.one()
        assert again.message.value == original(subject).value
        assert not subject.browse(direct=False)
        taker.settle(Accept(), again)

    @broker_has(*NEEDS, "receive", "attempts")
    def test_a_redriven_letter_starts_again_at_the_first_attempt(self, subject: Subject) -> None:
        self._bury(subject, original(subject))
        with self._box(subject) as dlq:
            dlq.redrive()
        assert Taker(subject).one().attempt == 1

    @broker_has(*NEEDS)
    def test_a_letter_is_removed_only_after_it_was_stored(self, subject: Subject) -> None:
        """The independent reader checks this at the moment of the removal."""
        self._bury(subject, original(subject))
        seen: list[Counter[bytes | None]] = []
        with self._box(subject, before_removing=lambda: seen.append(subject.values())) as dlq:
            dlq.redrive()
        assert seen == [Counter([original(subject).value])]

    @broker_has(*NEEDS)
    def test_killed_before_it_removes_a_redrive_leaves_the_letter_in_both_places(self, subject: Subject) -> None:
        """The next redrive sends it under the same id, so a reader that compares ids finds it once."""
        self._bury(subject, original(subject))

        def die() -> None:
            raise Killed("killed")

        with self._box(subject, before_removing=die) as dlq, pytest.raises(Killed):
            dlq.redrive()
        assert len(subject.browse(direct=False)) == 1
        assert subject.values().total() == 1
        with self._box(subject) as dlq:
            dlq.redrive()
        assert not subject.browse(direct=False)
        stored = subject.place.stored()
        assert len(stored) == 1 if subject.capabilities.deduplicate else len(stored) == 2
        if subject.capabilities.ids:
            assert len({message.id for message in stored}) == 1

    @broker_has(*NEEDS)
    @pytest.mark.parametrize("when", ["before-it-is-noted", "before-it-is-removed", "after-it-is-removed"])
    def test_a_killed_redrive_loses_no_letter_and_the_next_one_goes_on_by_its_ledger(
        self, subject: Subject, tmp_path: Path, when: str
    ) -> None:
        """It is killed between two steps: confirm, note in the journal, remove. A noted letter is not sent again."""
        rows = [replace(row, id=f"n{at}" if subject.capabilities.ids else None) for at, row in enumerate(numbered(3))]
        values = Counter(message.value for message in rows)
        self._bury(subject, *rows)
        journal, briefly = tmp_path / "journal.db", subject.place.forgetting(2.0)

        def child() -> None:
            if when == "before-it-is-noted":
                Journal.sent = _die  # type: ignore[assignment, method-assign]
            hook = {"before_removing": _die} if when == "before-it-is-removed" else {"after_removing": _die}
            with self._box(subject, **hook, options=briefly) as dlq:
                dlq.redrive(settings=RedriveSettings(limit=1), journal=journal)

        assert in_a_fork(subject, child) == KILLED, "the child did not get as far"
        left, end = 2 if when == "after-it-is-removed" else 3, subject.deadline()
        while len(letters := subject.browse(direct=False)) < left and time.monotonic() < end:
            time.sleep(0.2)  # the broker drops the dead process's connection, or its lock on the letters
        assert len(letters) == left
        assert subject.values().total() == 1
        assert subject.values() | Counter(letter.message.value for letter in letters) == values, "one is in no place"
        with self._box(subject) as dlq:
            report = dlq.redrive(journal=journal)
        assert report.resumed == (1 if when == "before-it-is-removed" else 0)
        assert not subject.browse(direct=False)
        twice = when == "before-it-is-noted" and not subject.capabilities.deduplicate
        assert subject.values().total() == (4 if twice else 3)
        stored = subject.place.stored()
        assert {message.value for message in stored} == set(values)
        if subject.capabilities.ids:
            assert len({message.id for message in stored}) == 3, "what was sent twice has two ids"

    @broker_has(*NEEDS)
    def test_an_edited_letter_is_sent_once_and_the_original_never(self, subject: Subject, tmp_path: Path) -> None:
        """Killed after the confirmation: the next redrive removes it, whatever that one would make of it."""
        self._bury(subject, original(subject))
        first, other = (Patch.read({"headers": {"set": {"edited": each}}}) for each in ("1", "2"))
        journal = tmp_path / "journal.db"

        def die() -> None:
            raise Killed("killed")

        with self._box(subject, before_removing=die) as dlq, pytest.raises(Killed):
            dlq.redrive(patch=first, journal=journal)
        for patch, resumed in ((other, 1), (None, 0)):
            with self._box(subject) as dlq:
                report = dlq.redrive(patch=patch, journal=journal)
            assert (report.resumed, report.redriven) == (resumed, 0)
        assert not subject.browse(direct=False)
        (there,) = subject.place.stored()
        assert there.value == original(subject).value
        assert [each for each in there.headers if each[0] == "edited"] == [("edited", b"1")]
        assert dialects.read(there) is None, "the error context came along"

    @broker_has(*NEEDS)
    def test_a_redrive_in_waves_stops_where_letters_come_back(self, subject: Subject) -> None:
        self._bury(subject, *(Message(value=b"%d" % at) for at in range(6)))
        back: list[Message] = []

        def fails_again(report: RedriveReport) -> None:
            """A consumer that fails on the first message."""
            if report.redriven >= 2 and not back:
                back.append(Message(value=b"back"))
                now_ms = time.time_ns() // 1_000_000
                self._bury(subject, back[0], replace(CONTEXT, hops=1, last_failure_ms=now_ms + 1))

        waves = Waves(sizes=(2, 4), stop_at=1, wait=timedelta(seconds=1))
        with self._box(subject) as dlq:
            report = dlq.redrive(waves=waves, settings=RedriveSettings(on_progress=fails_again))
        assert (report.redriven, report.removed, report.returned) == (2, 2, 1)
        assert (report.stopped or "").startswith("wave 1: 1 of 2 came back"), report.stopped
        assert sum(report.causes.values()) == 1
        assert len(subject.browse(direct=False)) == 5
        assert subject.values().total() == 2

    @broker_has(*NEEDS)
    def test_only_the_letters_that_a_selection_means_are_redriven(self, subject: Subject) -> None:
        self._bury(subject, Message(value=b"mine", headers=(("tenant", b"acme"),)), Message(value=b"other"))
        where = Selection.parse(f"reason={CONTEXT.reason}", "header.tenant=acme")
        with self._box(subject) as dlq:
            planned = dlq.redrive(where=where, settings=RedriveSettings(dry_run=True))
            assert (planned.selected, planned.redriven) == (1, 0)
        assert len(subject.browse(direct=False)) == 2, "a dry run changed something"
        with self._box(subject) as dlq:
            assert dlq.redrive(where=where).removed == 1
        assert subject.values() == Counter([b"mine"])
        assert [letter.message.value for letter in subject.browse(direct=False)] == [b"other"]

    @broker_has(*NEEDS)
    def test_a_second_redrive_finds_nothing(self, subject: Subject) -> None:
        self._bury(subject, original(subject))
        for count in (1, 0):
            with self._box(subject) as dlq:
                assert dlq.redrive().redriven == count
        assert subject.values().total() == 1

    @broker_has(*NEEDS)
    def test_a_redrive_of_some_leaves_the_others(self, subject: Subject) -> None:
        self._bury(subject, *(Message(value=b"%d" % at) for at in range(4)))
        chosen = [each.position for each in subject.browse(direct=False) if each.message.value in {b"1", b"3"}]
        with self._box(subject) as dlq:
            assert dlq.redrive(chosen).removed == 2
        assert sorted(each.message.value or b"" for each in subject.browse(direct=False)) == [b"0", b"2"]
        assert subject.values() == Counter([b"1", b"3"])

    @broker_has(*NEEDS)
    def test_a_letter_sent_back_too_often_stays(self, subject: Subject) -> None:
        self._bury(subject, original(subject), replace(CONTEXT, hops=5))
        with self._box(subject) as dlq:
            report = dlq.redrive()
        assert report.redriven == 0
        assert sum(report.left.values()) == 1
        assert len(subject.browse(direct=False)) == 1

    @broker_has(*NEEDS, "redrive")
    def test_a_broker_moves_all_letters_back_by_itself(self, subject: Subject) -> None:
        """It moves them unchanged, and only those of the place. The move is complete when the call returns."""
        self._bury(subject, *(Message(value=b"%d" % at) for at in range(12)))
        subject.deliver(Message(value=b"live"))
        with self._box(subject) as dlq:
            assert dlq.move_back(wait=60.0) == 12
            assert dlq.move_back(wait=60.0) == 0
        assert subject.values() == Counter([b"live", *(b"%d" % at for at in range(12))])
        assert not subject.browse(direct=False)

    @broker_has("browse")
    @broker_lacks("redrive")
    def test_without_redrive_of_its_own_asking_for_it_is_unsupported(self, subject: Subject) -> None:
        letters = subject.dead_letters(direct=not subject.capabilities.dead_letter)
        subject.is_unsupported(lambda: letters.move_back(wait=1.0))

    @broker_has(*NEEDS)
    def test_many_letters_are_redriven_each_once(self, subject: Subject) -> None:
        """There are more letters than one batch. While the redrive browses the place, letters leave it."""
        count = min(1_200, subject.place.many)
        keys = subject.capabilities.keys  # letters that wait behind others share one key
        rows = [Message(value=b"%d" % at, key=b"%d" % at if keys else None) for at in range(count)]
        self._bury(subject, *rows)
        with self._box(subject) as dlq:
            assert dlq.redrive().removed == count
        assert subject.values() == Counter(row.value for row in rows)
        assert not subject.browse(direct=False)

    @broker_has(*NEEDS, "receive", "expiry", "destinations")
    def test_what_the_broker_gave_up_is_forwarded_with_its_reason(self, subject: Subject) -> None:
        """The sink has it with a readable context, and it is gone from its place."""
        subject.provision()
        subject.deliver(original(subject), options=subject.place.expiring(0.2))
        time.sleep(0.3)
        taker, end = Taker(subject), time.monotonic() + subject.place.patience
        while not subject.browse(direct=False):
            taker.nothing()
            assert time.monotonic() < end + GRACE, "it never became a dead letter"
        sink = subject.broker.sibling(subject.place.destination("kept"))
        with self._box(subject) as dlq:
            report = dlq.forward(sink)
        assert (report.considered, report.redriven, report.removed) == (1, 1, 1), report
        assert not subject.browse(direct=False)
        with subject.connect(sink).dead_letters(direct=True) as letters:
            (letter,) = letters.browse()
        context = dialects.read(letter.message)
        assert letter.message.value == original(subject).value
        assert context is not None
        assert context.kind == "expired"

    def _bury(self, subject: Subject, first: Message, *rest: Message | ErrorContext) -> None:
        """Put messages into the native place as letters, with their context if given."""
        subject.provision()
        context = next((each for each in rest if isinstance(each, ErrorContext)), replace(CONTEXT, hops=0))
        messages = [first, *(each for each in rest if isinstance(each, Message))]
        letters = [self._letter(subject, each, replace(context, message_id=each.id)) for each in messages]
        subject.deliver(*letters, url=subject.broker.native_sink())

    @staticmethod
    def _letter(subject: Subject, message: Message, context: ErrorContext) -> Message:
        has = subject.capabilities
        return dialects.attach(
            message, context, dialect=has.context_dialect, limits=has.limits, prefix=has.cloudevents_prefix
        )

    @staticmethod
    def _box(
        subject: Subject,
        *,
        before_removing: Callable[[], object] = lambda: None,
        after_removing: Callable[[], object] = lambda: None,
        options: Mapping[str, str] | None = None,
    ) -> DeadLetterQueue:
        @contextmanager
        def connection_factory(url: str, _options: Mapping[str, str]) -> Iterator[Broker]:
            with subject.harness.connect(url, {**subject.place.options, **(options or {})}) as broker:
                yield Watched(broker, before_removing, after_removing)

        return dead_letters(subject.place.url, options=subject.place.options, connection_factory=connection_factory)


class Watched(Broker):
    """A broker whose removals are watched."""

    def __init__(self, broker: Broker, *watches: Callable[[], object]) -> None:
        self.name = broker.name
        self.capabilities = broker.capabilities
        self._broker = broker
        self._watches = watches

    def sender(self) -> Sender:
        return self._broker.sender()

    def native_sink(self) -> str:
        return self._broker.native_sink()

    def dead_letter_places(self) -> Sequence[str]:
        return self._broker.dead_letter_places()

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return WatchedLetters(self._broker.dead_letters(direct=direct), *self._watches)

    def close(self) -> None:
        """Do nothing: the borrower closes the broker."""


class WatchedLetters(DeadLetters):
    """Letters that call back before and after a removal."""

    def __init__(self, letters: DeadLetters, before: Callable[[], object], after: Callable[[], object]) -> None:
        self._letters = letters
        self._before = before
        self._after = after

    def browse(self) -> Iterator[Letter]:
        return self._letters.browse()

    def splits(self, wanted: Wanted) -> Sequence[str]:
        return self._letters.splits(wanted)

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:
        return self._letters.read(split, wanted)

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        return self._letters.cursor(after=after, most=most)

    def remove(self, positions: Sequence[str]) -> int:
        self._before()
        removed = self._letters.remove(positions)
        self._after()
        return removed

    def purge(self) -> int:
        return self._letters.purge()

    def move_back(self, *, wait: float) -> int:
        return self._letters.move_back(wait=wait)

    def close(self) -> None:
        self._letters.close()
