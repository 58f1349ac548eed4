"""Failures: each names the right row and class, once. Other rows are stored. An outage blames no row."""

from __future__ import annotations

import pickle
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta

import pytest

from redelivery.base.clock import SystemClock
from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import FOREVER, DeliverySpec
from redelivery.errors import Ambiguous, BrokerError, ConfigurationError, Fatal, Permanent, Unattributed
from redelivery.sending import Bounds, Engine, Origin, SendQueue
from redelivery_conformance.harness import TRIED_BYTES, CannotShow
from redelivery_conformance.statements import Statements, broker_has
from redelivery_conformance.subject import GRACE, NotApplicable, Subject, confirmed, unattributed


def over(name: str, limit: int) -> Message:
    """Return a message that exceeds one limit and, as far as possible, no other."""
    match name:
        case "message_bytes":
            return Message(value=bytes(limit + 1))
        case "headers_bytes":
            return Message(value=b"v", headers=tuple((f"h{at}", bytes(1000)) for at in range(limit // 1000 + 1)))
        case "header_value_bytes":
            return Message(value=b"v", headers=(("h", bytes(limit + 1)),))
        case "key_bytes":
            return Message(value=b"v", key=bytes(limit + 1))
        case "header_count":
            return Message(value=b"v", headers=tuple((f"h{at}", b"1") for at in range(limit + 1)))
        case _:
            return Message(value=b"v", id="i" * (limit + 1))


class Failures(Statements):
    """Reports about rows that were not stored."""

    @broker_has("send")
    @pytest.mark.parametrize(
        "limit", ["message_bytes", "headers_bytes", "header_value_bytes", "header_count", "id_bytes", "key_bytes"]
    )
    def test_a_row_over_a_limit_is_refused_alone(self, subject: Subject, limit: str) -> None:
        most = getattr(subject.capabilities.limits, limit)
        if most is None or most > TRIED_BYTES:
            raise NotApplicable(f"limits.{limit} is {most}")
        needs = {"id_bytes": "ids", "key_bytes": "keys", "message_bytes": "send"}.get(limit, "headers")
        if not getattr(subject.capabilities, needs):
            raise NotApplicable(f"capability {needs} is none")
        subject.refuses_alone(over(limit, most))

    @broker_has("send")
    def test_isolated_rows_are_blamed_exactly(self, subject: Subject) -> None:
        bad, good = subject.poison(), [Message(value=b"%d" % at) for at in range(4)]
        settled = subject.send(bad, good[0], good[1], bad, good[2], good[3], bad, isolate=True)
        subject.refused(settled, 0, 3, 6)
        assert subject.values() == Counter(message.value for message in good)

    @broker_has("send")
    def test_without_isolation_a_culprit_is_blamed_exactly_or_nothing_is_stored(self, subject: Subject) -> None:
        bad, good = subject.poison(), [Message(value=b"%d" % at) for at in range(4)]
        settled = subject.send(good[0], good[1], bad, good[2], good[3])
        if unattributed(settled):
            assert not subject.values(), "Unattributed means that nothing was stored"
        else:
            subject.refused(settled, 2)
            assert subject.values() == Counter(message.value for message in good)

    @broker_has("send")
    def test_after_a_refusal_the_sender_goes_on(self, subject: Subject) -> None:
        sender = subject.sender()
        subject.send(subject.poison(), sender=sender, isolate=True)
        settled = subject.send(Message(value=b"next"), sender=sender)
        assert settled.error is None
        assert not settled.failures
        assert subject.values() == Counter([b"next"])

    @broker_has("send")
    def test_a_batch_of_refused_rows_alone_is_told_row_by_row(self, subject: Subject) -> None:
        bad = subject.poison()
        subject.refused(subject.send(bad, bad, bad, isolate=True), 0, 1, 2)
        assert not subject.values()

    @broker_has("send")
    def test_a_failure_says_why_and_survives_pickling(self, subject: Subject) -> None:
        """The error travels from a worker to the driver with its text and class."""
        (failure,) = subject.send(subject.poison(), isolate=True).failures
        again = pickle.loads(pickle.dumps(failure.error))  # noqa: S301 - our own
        assert str(failure.error).strip()
        assert (type(again), str(again)) == (type(failure.error), str(failure.error))
        assert (again.code, again.native_code) == (failure.error.code, failure.error.native_code)

    @broker_has("send")
    def test_an_unreachable_broker_is_told_by_the_deadline_and_blames_no_row(self, subject: Subject) -> None:
        """`sender`, `send` or `collect` reports it as a BrokerError, never as the client's own error."""
        began = time.monotonic()
        deadline = subject.deadline(subject.brief)
        batch = subject.batch([Message(value=b"a"), Message(value=b"b")])
        errors: list[BrokerError | None] = []
        broker = subject.connect(subject.place.unreachable())
        try:
            with broker.sender() as sender:
                settled = subject.settle(sender, batch, deadline=deadline)[batch.number]
                assert not confirmed(batch, settled), "confirmed, though there is no broker"
                errors = [settled.error, *(each.error for each in settled.failures)]
        except BrokerError as error:
            errors = [error]
        assert time.monotonic() - began < 2 * subject.place.patience + GRACE
        _blames_no_row(errors)

    @broker_has("send", "destinations")
    def test_rows_for_a_url_whose_target_is_not_there_fail_as_fatal(self, subject: Subject) -> None:
        """Without a check too: they fail as soon as the broker reports it, and not as ambiguous at the deadline."""
        nowhere = subject.place.impossible_destination()
        if nowhere is None:
            raise NotApplicable("any destination can be")
        batch = subject.batch([Message(value=b"a"), Message(value=b"b")])
        errors: list[BaseException | None] = []
        try:
            with subject.connect(subject.broker.sibling(nowhere)).sender() as sender:
                settled = subject.settle(sender, batch)[batch.number]
                assert not confirmed(batch, settled), "confirmed, though there is no target"
                errors = [each.error for each in settled.failures]
                errors += [settled.error] if len(errors) < batch.length else []
        except (BrokerError, ConfigurationError) as error:
            errors = [error]
        for each in errors:
            assert isinstance(each, Fatal | ConfigurationError), f"{each!r} for a URL whose target is not there"

    @broker_has("send")
    def test_an_outage_loses_nothing_that_was_confirmed(self, subject: Subject) -> None:
        """Every settlement during an outage, by a new sender or an open one, is still true after it."""
        subject.expect_outages()
        subject.deliver(Message(value=b"before"))
        sender = subject.sender()
        subject.send(Message(value=b"warm"), sender=sender)
        sure, unsure = Counter[bytes | None]([b"before", b"warm"]), Counter[bytes | None]()
        with subject.outage("refused", "silent"):
            for name in (b"open", b"new"):
                batch = subject.batch([Message(value=name + b"%d" % at) for at in range(3)])
                began = time.monotonic()
                try:
                    there = sender if name == b"open" else subject.sender()
                    settled = subject.settle(there, batch, deadline=subject.deadline(subject.brief))[batch.number]
                except BrokerError as error:
                    settled = Settled(batch=batch.number, error=error)
                assert time.monotonic() - began < 2 * subject.place.patience + GRACE
                _blames_no_row([settled.error, *(each.error for each in settled.failures)])
                sure.update(message.value for message in confirmed(batch, settled))
                unsure.update(_ambiguous(batch, settled))
        found = subject.values()
        assert sure <= found, "confirmed, but not there"
        assert found <= sure + unsure, "said not to be stored, but there"
        subject.deliver(Message(value=b"after"))
        assert subject.values()[b"after"] == 1, "it did not come back after the outage"

    @broker_has("send")
    def test_a_silent_broker_is_told_by_the_deadline_and_what_is_said_holds(self, subject: Subject) -> None:
        """No answer arrives and no connection ends: only the deadline ends the wait. Then rows in flight are cut off.

        Neither error is retriable: the rows may have arrived, and here they have.
        """
        subject.expect_outages()
        waiting, lost = subject.sender(), subject.sender()
        batches = [subject.batch([Message(value=b"%d %d" % (at, row)) for row in range(3)]) for at in range(2)]
        for sender in (waiting, lost):
            subject.send(Message(value=b"warm"), sender=sender)
        in_flight: dict[int, Settled] = {}
        with subject.outage("silent"):
            later = subject.deadline(2 * subject.brief)
            subject.hand_over(lost, batches[1], in_flight, deadline=later)
            subject.look(lost, in_flight, batches[1])
            settled = subject.settle(waiting, batches[0], deadline=subject.deadline(subject.brief))
            with suppress(CannotShow), subject.place.outage("reset"):
                pass
            settled |= subject.collect(lost, in_flight, batches[1], deadline=later)
        for batch in batches:
            told = settled[batch.number]
            assert not confirmed(batch, told), "confirmed, though nobody has answered"
            _blames_no_row([told.error, *(each.error for each in told.failures)])
        subject.deliver(Message(value=b"after"))
        unsure = Counter(value for batch in batches for value in _ambiguous(batch, settled[batch.number]))
        sure = Counter[bytes | None]({b"warm": 2, b"after": 1})
        found = subject.values()
        assert sure <= found <= sure + unsure, "said not to be stored, but there; or there twice"

    @broker_has("send")
    def test_the_account_explains_every_duplicate_of_an_outage(self, subject: Subject) -> None:
        """Invariant 3: a job that continues through an outage has no more duplicates than ambiguous attempts.

        If the place can show it, the outage is silent and every connection is cut.
        """
        subject.expect_outages()
        attempt = timedelta(seconds=subject.brief)
        spec = DeliverySpec(retry_timeout=FOREVER, retry_delay_max=timedelta(seconds=0.5), timeout=attempt)
        clock, rows = SystemClock(), [b"row %d" % at for at in range(60)]
        send_queue = SendQueue(subject.place.url, subject.broker, spec, Bounds(), clock)
        engine = Engine([send_queue], spec, Origin(run="audit"), clock, random.random)

        def turn_until(done: Callable[[], object]) -> None:
            until = time.monotonic() + 4 * subject.place.patience + GRACE
            while not done():
                assert time.monotonic() < until, "the job does not come to an end"
                engine.turn(0.05)

        with closing(send_queue):
            engine.take(Batch.of([Message(value=value) for value in rows[:20]]))
            turn_until(lambda: engine.idle)
            engine.take(Batch.of([Message(value=value) for value in rows[20:40]]))
            with subject.outage("silent", "refused"):
                engine.take(Batch.of([Message(value=value) for value in rows[40:]]))
                engine.turn(0.05)
                with suppress(CannotShow), subject.place.outage("reset"):
                    pass  # rows in flight have arrived, and their answers are lost
                # An open sender may not notice: it still has the folder that was moved away.
                turn_until(lambda: engine.report.record_failures or engine.idle)
            turn_until(lambda: engine.idle)
        found, report = subject.values(), engine.report
        assert set(found) == set(rows)
        assert report.accounted
        assert found.total() - len(found) <= report.ambiguous, "duplicates that no ambiguous attempt explains"

    @broker_has("send")
    def test_a_target_that_disappears_under_an_open_sender_blames_no_row(self, subject: Subject) -> None:
        """It ends as Fatal, or sending creates the target again. A client may notice after a moment."""
        sender = subject.sender()
        subject.send(Message(value=b"warm"), sender=sender)
        subject.place.vanish()
        end, number = subject.deadline(2 * subject.place.patience), 0
        while time.monotonic() < end:
            number += 1
            batch = subject.batch([Message(value=b"%d-%d" % (number, at)) for at in range(3)])
            settled = subject.settle(sender, batch)[batch.number]
            errors = [settled.error, *(each.error for each in settled.failures)]
            _blames_no_row(errors)
            if any(isinstance(error, Fatal) for error in errors):
                return
            sure = Counter(message.value for message in confirmed(batch, settled))
            if len(sure) == batch.length and sure <= subject.values():
                return
        pytest.fail("rows are neither stored nor refused by a fatal error")


def _blames_no_row(errors: list[BrokerError | None]) -> None:
    for error in errors:
        assert not isinstance(error, Permanent | Unattributed), f"an outage is no row's fault: {error!r}"


def _ambiguous(batch: Batch, settled: Settled) -> list[bytes | None]:
    """Return the values of the rows that may be stored according to a settlement."""
    failures = {each.index: each.error for each in settled.failures}
    rows = [(batch.row(index).value, failures.get(index, settled.error)) for index in range(batch.length)]
    return [value for value, error in rows if isinstance(error, Ambiguous)]
