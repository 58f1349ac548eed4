"""Brokers that settle wrongly, or say the wrong thing of a failure. See `broken.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from broken import Broken

from redelivery.codes import Code
from redelivery.contract.broker import Failure, Sender, Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Ambiguous, Permanent, Retriable
from redelivery_conformance.memory import (
    NEVER_MADE,
    MemorySender,
    Store,
)

# --- settled wrongly -----------------------------------------------------------------------------------------------


class SettlesTwice(Broken):
    """Tells of each batch again, a little later."""

    caught_by = "every_batch_is_settled_exactly_once"

    class SenderRole(MemorySender):
        def collect(self, wait: float) -> Sequence[Settled]:
            settled = super().collect(wait)
            if len(settled) == 0:
                settled, self.again = getattr(self, "again", ()), ()
                return settled
            self.again = [each for each in settled if each.batch == 5]
            return settled


class NeverSettles(Broken):
    """A batch without an answer stays without one, whatever the deadline."""

    caught_by = "a_batch_is_settled_by_its_deadline"

    class SenderRole(MemorySender):
        def collect(self, wait: float) -> Sequence[Settled]:
            time.sleep(min(wait, 0.1))
            return []


class RenumbersBatches(Broken):
    caught_by = "a_settlement_names_its_own_batch"

    class SenderRole(MemorySender):
        def collect(self, wait: float) -> Sequence[Settled]:
            return [replace(each, batch=each.batch % 1_000_000) for each in super().collect(wait)]


class WaitsWithNothingInFlight(Broken):
    caught_by = "collect_returns_at_once_with_nothing_in_flight"

    class SenderRole(MemorySender):
        def collect(self, wait: float) -> Sequence[Settled]:
            settled = super().collect(wait)
            if not settled:
                time.sleep(min(wait, 0.6))
            return settled


class IgnoresItsWait(Broken):
    caught_by = "collect_returns_by_its_wait"

    class SenderRole(MemorySender):
        def collect(self, wait: float) -> Sequence[Settled]:
            settled = super().collect(wait)
            if settled:
                time.sleep(0.6)
            return settled


class KeepsOnlyOneBatch(Broken):
    """A second batch in flight pushes out the first."""

    caught_by = "several_batches_in_flight_are_all_stored"

    class SenderRole(MemorySender):
        def send(self, batch: Batch, *, deadline: float) -> None:
            super().send(batch, deadline=deadline)
            del self.settled[:-1]


class RetriesByItself(Broken):
    """Tries a refused row again before it says so."""

    caught_by = "a_refused_row_is_tried_once"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            if settled.failures:
                time.sleep(0.6)
            return settled


class SleepsBetweenBatches(Broken):
    caught_by = "a_good_batch_is_sent_once_and_without_a_pause"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            time.sleep(0.05)
            return super().store_batch(store, batch)


class StoresPastTheDeadline(Broken):
    """Says that nothing happened, and stores it."""

    caught_by = "a_batch_past_its_deadline_is_accounted_for_at_once"

    class SenderRole(MemorySender):
        def send(self, batch: Batch, *, deadline: float) -> None:
            super().send(batch, deadline=max(deadline, time.monotonic() + 1))
            if deadline < time.monotonic():
                self.settled.clear()
                raise Retriable("memory: the deadline had passed")


# --- failures ------------------------------------------------------------------------------------------------------


class BlamesTheNeighbour(Broken):
    caught_by = "isolated_rows_are_blamed_exactly"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            if len(settled.failures) < 2:
                return settled
            moved = [Failure(max(each.index - 1, 0), each.error) for each in settled.failures]
            return replace(settled, failures=moved)


class BlamesAllForOne(Broken):
    """One bad row takes the whole client batch down, and says that each row is bad."""

    caught_by = "without_isolation_a_culprit_is_blamed_exactly_or_nothing_is_stored"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if batch.isolate or not any(map(self.broker.fault, batch.rows())):
                return super().store_batch(store, batch)
            return Settled(batch=batch.number, error=Permanent("memory: the batch was refused"))


class CallsARefusalRetriable(Broken):
    caught_by = "a_batch_of_refused_rows_alone_is_told_row_by_row"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            if len(settled.failures) < batch.length:
                return settled
            return replace(settled, failures=[Failure(each.index, Retriable("later")) for each in settled.failures])


class DiesOfARefusal(Broken):
    """A refused row closes the channel, and nobody opens it again."""

    caught_by = "after_a_refusal_the_sender_goes_on"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            self.closed = self.closed or bool(settled.failures)
            return settled


class HasErrorsThatDoNotPickle(Broken):
    caught_by = "a_failure_says_why_and_survives_pickling"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            for each in settled.failures:
                each.error.response = lambda: None
            return settled


class IgnoresALimit(Broken):
    """Takes more headers than it says."""

    caught_by = "a_row_over_a_limit_is_refused_alone[memory-id_bytes]"

    def fault(self, message: Message) -> Permanent | None:
        return super().fault(replace(message, id=None))


class CutsLongKeys(Broken):
    """To its limit, so that two keys become one."""

    caught_by = "a_row_over_a_limit_is_refused_alone[memory-key_bytes]"

    def fault(self, message: Message) -> Permanent | None:
        return super().fault(replace(message, key=None))


class LetsTheClientsErrorOut(Broken):
    """An error of the client library reaches the engine as it is."""

    caught_by = "an_unreachable_broker_is_told_by_the_deadline_and_blames_no_row"

    def sender(self) -> Sender:
        if self.host not in Store.by_name:
            raise ConnectionRefusedError(111, "connection refused")
        return super().sender()


class DeniesWhatItStored(Broken):
    """In an outage rows are stored, and their batch is said to have done nothing: they are sent, and stored, again."""

    caught_by = "an_outage_loses_nothing_that_was_confirmed"

    class SenderRole(MemorySender):
        def send(self, batch: Batch, *, deadline: float) -> None:
            try:
                super().send(batch, deadline=deadline)
            except Retriable as error:
                if error.code is Code.CONNECTION_LOST:
                    self.store_batch(Store.by_name[self.broker.host], batch)
                raise


class BlamesRowsForAnOutage(Broken):
    caught_by = "an_outage_loses_nothing_that_was_confirmed"

    class SenderRole(MemorySender):
        def send(self, batch: Batch, *, deadline: float) -> None:
            try:
                super().send(batch, deadline=deadline)
            except Retriable as error:
                if error.code is not Code.CONNECTION_LOST:
                    raise
                self.settled.append(Settled(batch=batch.number, error=Permanent(str(error))))


class WaitsForATargetThatIsNotThere(Broken):
    """The broker's answer is overheard, so its deadline ends it: nobody learns that no try will mend it."""

    caught_by = "rows_for_a_url_whose_target_is_not_there_fail_as_fatal"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if self.broker.queue == NEVER_MADE:
                return Settled(batch=batch.number, error=Ambiguous("memory: no answer by the deadline"))
            return super().store_batch(store, batch)

    def sender(self) -> Sender:
        return self.SenderRole(self)


class BlamesRowsForALostTarget(Broken):
    """What its client says of a target that it cannot find is taken for the row's own fault."""

    caught_by = "a_target_that_disappears_under_an_open_sender_blames_no_row"

    class SenderRole(MemorySender):
        known = False

        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if self.known and self.broker.queue not in store.queues:
                return Settled(
                    batch=batch.number, error=Permanent("memory: there is no such queue", code=Code.NO_SUCH_DESTINATION)
                )
            self.known = True
            return super().store_batch(store, batch)


class ConfirmsIntoALostTarget(Broken):
    """What it holds open is there no more for anybody else."""

    caught_by = "a_target_that_disappears_under_an_open_sender_blames_no_row"

    class SenderRole(MemorySender):
        known = False

        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if self.known and self.broker.queue not in store.queues:
                return Settled(batch=batch.number)
            self.known = True
            return super().store_batch(store, batch)


# --- asked before there are rows -----------------------------------------------------------------------------------


class ChecksBySending(Broken):
    """Its check leaves a message behind."""

    caught_by = "a_check_passes_where_rows_can_be_sent_and_sends_nothing"

    class SenderRole(MemorySender):
        def check(self, *, deadline: float) -> None:
            super().check(deadline=deadline)
            self.store_row(self.broker.store(), Message(value=b"is anybody there?"))


class ChecksNothing(Broken):
    """A missing store is found out by the first row."""

    caught_by = "opening_and_checking_tell_of_a_broker_that_is_not_reached"

    def sender(self) -> Sender:
        return MemorySender(self)


class ChecksTheStoreAlone(Broken):
    """A missing queue is found out by the first row."""

    caught_by = "opening_and_checking_tell_of_a_target_that_is_not_there"

    def sender(self) -> Sender:
        self.store()
        return MemorySender(self)
