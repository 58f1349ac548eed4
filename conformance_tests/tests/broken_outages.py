"""Brokers whose client fails when a connection is lost, or when no answer comes. See `broken.py`."""

from __future__ import annotations

from collections.abc import Sequence

from broken import Broken

from redelivery.codes import Code
from redelivery.contract.broker import Outcome, Received, Settled
from redelivery.errors import Ambiguous, BrokerError, LeaseLost, Retriable
from redelivery_conformance.memory import MemoryBroker, MemoryReceiver, MemorySender, Store
from redelivery_conformance.memory_sender import Unanswered

SILENT = "a_silent_broker_is_told_by_the_deadline_and_what_is_said_holds"


class HasNoDeadlineTimer(Broken):
    """Waits until an answer comes, or the connection ends."""

    caught_by = SILENT

    class SenderRole(MemorySender):
        def answer(self, store: Store, sent: Unanswered) -> Settled | None:
            settled = super().answer(store, sent)
            return None if store.silent and store.cuts == sent.cuts else settled


class CallsALostConnectionRetriable(Broken):
    """Messages in flight have arrived, and are sent again as if they had not."""

    caught_by = SILENT

    class SenderRole(MemorySender):
        def answer(self, store: Store, sent: Unanswered) -> Settled | None:
            if store.cuts != sent.cuts:
                return Settled(batch=sent.batch.number, error=Retriable("memory: the connection was lost"))
            return super().answer(store, sent)


class CallsAPassedDeadlineRetriable(Broken):
    caught_by = SILENT

    class SenderRole(MemorySender):
        def answer(self, store: Store, sent: Unanswered) -> Settled | None:
            settled = super().answer(store, sent)
            if settled is not None and isinstance(settled.error, Ambiguous):
                return Settled(batch=sent.batch.number, error=Retriable("memory: timed out"))
            return settled


class TakesWrittenForStored(Broken):
    """What went into the socket is confirmed."""

    caught_by = SILENT

    class SenderRole(MemorySender):
        def answer(self, store: Store, sent: Unanswered) -> Settled | None:
            return sent.settled


class SendsAgainByItself(Broken):
    """Its client connects again and sends what had no answer, and says that all is well."""

    caught_by = "the_account_explains_every_duplicate_of_an_outage"

    class SenderRole(MemorySender):
        def answer(self, store: Store, sent: Unanswered) -> Settled | None:
            if store.cuts != sent.cuts:
                for _ in range(2):
                    self.store_batch(store, sent.batch)
                return sent.settled
            return super().answer(store, sent)


class SettlesWithoutWaiting(Broken):
    """It writes the acknowledgement, and does not wait for its confirmation."""

    caught_by = "an_outage_loses_nothing_that_was_in_hand[memory-silent]"

    class ReceiverRole(MemoryReceiver):
        def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
            try:
                return super().settle(outcomes)
            except Ambiguous:
                return [None] * len(outcomes)


class CutReceiver(MemoryReceiver):
    """Remembers how many cuts there were when it connected."""

    def __init__(self, broker: MemoryBroker, lease: float) -> None:
        super().__init__(broker, lease)
        self.cuts = broker.store().cuts


class ConnectsAgainByItself(Broken):
    """Leased messages go back when the connection ends; the next one takes an acknowledgement of it for good."""

    caught_by = "a_lease_that_a_cut_connection_ended_is_never_settled_quietly"

    class ReceiverRole(CutReceiver):
        def open_store(self) -> Store:
            store = super().open_store()
            if store.cuts != self.cuts:
                self.cuts = store.cuts
                for state in store.queue(self.broker.queue).states.values():
                    state.lease, state.visible = 0, 0.0
            return store

        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | BrokerError | None:
            answer = super().settle_one(store, received, outcome)
            return None if isinstance(answer, LeaseLost) else answer


class NeverConnectsAgain(Broken):
    """Its receiver keeps the connection that was cut, and fails from then on."""

    caught_by = "an_outage_of_its_broker_ends_no_subscription"

    class ReceiverRole(CutReceiver):
        def open_store(self) -> Store:
            store = super().open_store()
            if store.cuts != self.cuts:
                raise Retriable("memory: the connection is closed", code=Code.UNAVAILABLE)
            return store
