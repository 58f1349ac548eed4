"""Brokers whose receiver gives or keeps a message wrongly: leases, order, attempts, delays. See `broken.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from broken import Broken

from redelivery.contract.broker import Accept, Outcome, Received, Release, Settled
from redelivery.contract.message import Batch
from redelivery.errors import LeaseLost, NotSent
from redelivery_conformance.memory import PLAIN, MemoryReceiver, MemorySender, Store
from redelivery_conformance.memory_store import Queue, State

# --- given wrongly -------------------------------------------------------------------------------------------------


class GivesOneMessageToTwo(Broken):
    caught_by = "a_leased_message_is_hidden_from_a_second_receiver"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            received = super().give(store, queue, position, state)
            state.visible = 0.0
            return received


class DoublesUnderLoad(Broken):
    """One of ten is looked at, and then given, without a lock."""

    caught_by = "two_receivers_share_without_doubling"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            received = super().give(store, queue, position, state)
            if position % 10 == 0 and state.attempts == 1:
                state.visible = 0.0
            return received


class GivesMoreThanAsked(Broken):
    caught_by = "no_more_are_received_than_were_asked_for"

    class ReceiverRole(MemoryReceiver):
        def take(self, store: Store, most: int) -> list[Received]:
            return super().take(store, max(most, 5))


class LeasesAheadOfWhatItGives(Broken):
    """Prefetches, and keeps it."""

    caught_by = "no_more_are_received_than_were_asked_for"

    class ReceiverRole(MemoryReceiver):
        def take(self, store: Store, most: int) -> list[Received]:
            return super().take(store, most + 5)[:most]


class WaitsForAFullBatch(Broken):
    caught_by = "receiving_does_not_wait_when_something_is_there"

    class ReceiverRole(MemoryReceiver):
        def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
            received = list(super().receive(max_messages, wait=wait))
            if len(received) < max_messages:
                time.sleep(min(wait, 0.5))
            return received


class SleepsThroughArrivals(Broken):
    """Looks at the beginning of its wait, and at its end."""

    caught_by = "receiving_wakes_when_something_arrives"

    class ReceiverRole(MemoryReceiver):
        def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
            received = super().receive(max_messages, wait=0.0)
            if received:
                return received
            time.sleep(min(wait, 1.5))
            return super().receive(max_messages, wait=0.0)


class DoesNotWait(Broken):
    """The engine would spin."""

    caught_by = "an_empty_queue_gives_nothing_by_its_wait"

    class ReceiverRole(MemoryReceiver):
        def receive(self, max_messages: int, *, wait: float) -> Sequence[Received]:
            return super().receive(max_messages, wait=0.0)


class DiesOfDamage(Broken):
    """Its own error comes out, and the messages behind it never do."""

    caught_by = "a_message_that_cannot_be_decoded_is_told_and_harms_no_neighbour"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            if state.damage:
                raise ValueError(state.damage)
            return super().give(store, queue, position, state)


class GivesAfterItsClose(Broken):
    caught_by = "a_closed_receiver_gives_nothing_and_says_so"

    class ReceiverRole(MemoryReceiver):
        def close(self) -> None:
            pass


class AcceptsAllAtItsClose(Broken):
    """What is under lease is taken for handled."""

    caught_by = "closing_with_work_in_hand_does_not_hang_and_it_comes_back"

    class ReceiverRole(MemoryReceiver):
        def close(self) -> None:
            queue = self.broker.store().queue(self.broker.queue)
            for position in [at for at, state in queue.states.items() if state.lease]:
                queue.drop(position)
            super().close()


# --- order ---------------------------------------------------------------------------------------------------------


class GivesTheNewestFirst(Broken):
    caught_by = "messages_of_a_key_are_received_in_the_order_sent"

    class ReceiverRole(MemoryReceiver):
        def take(self, store: Store, most: int) -> list[Received]:
            return super().take(store, most)[::-1]


class PutsWhatIsGivenBackAtTheEnd(Broken):
    caught_by = "what_is_given_back_does_not_let_its_successors_pass_again"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | None:
            answer = super().settle_one(store, received, outcome)
            if isinstance(outcome, Release):
                store.add(self.broker.queue, store.queue(self.broker.queue).drop(int(received.position)))
            return answer


class StoresWhatItSaysItKeptBack(Broken):
    """The later rows of a failed key are told as not sent, and are there."""

    caught_by = "a_failed_row_keeps_back_the_later_rows_of_its_key"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            for each in settled.failures:
                if isinstance(each.error, NotSent):
                    self.store_row(store, batch.row(each.index))
            return settled


class PaysNoHeedToOrdered(Broken):
    """Stores the later rows of a failed key, as in any other batch."""

    caught_by = "a_failed_row_keeps_back_the_later_rows_of_its_key"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            return super().store_batch(store, replace(batch, ordered=False))


class KeepsTheWholeBatchBack(Broken):
    """Also the rows of other keys."""

    caught_by = "a_failed_row_keeps_back_the_later_rows_of_its_key"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if batch.ordered and batch.length > 1 and batch.key:
                rows = [replace(row, key=b"k") for row in batch.rows()]
                batch = replace(Batch.of(rows, number=batch.number), ordered=True)
            return super().store_batch(store, batch)


class HoldsAFailureAgainstAKey(Broken):
    """For ever."""

    caught_by = "what_was_kept_back_can_be_sent_again"

    class SenderRole(MemorySender):
        def collect(self, wait: float) -> Sequence[Settled]:
            failed = set(self.failed_keys)
            settled = super().collect(wait)
            self.failed_keys = failed
            return settled


# --- leases --------------------------------------------------------------------------------------------------------


class NeverGivesALostMessageAgain(Broken):
    """A lease that ran out leaves its message nowhere."""

    caught_by = "a_message_comes_back_when_its_lease_has_run_out_and_not_before"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            received = super().give(store, queue, position, state)
            state.visible = float("inf")
            return received


class EndsLeasesEarly(Broken):
    """By half of what it says."""

    caught_by = "a_message_comes_back_when_its_lease_has_run_out_and_not_before"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            received = super().give(store, queue, position, state)
            state.visible -= self.lease / 2
            return received


class TellsLeasesByTheWallClock(Broken):
    caught_by = "a_lease_says_when_it_ends_by_the_monotonic_clock"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            return replace(super().give(store, queue, position, state), expires=time.time() + self.lease)


class SettlesALostLease(Broken):
    """Whoever comes late deletes what another may be handling."""

    caught_by = "settling_after_the_lease_has_run_out_changes_nothing[memory-accept]"

    class ReceiverRole(MemoryReceiver):
        def held(self, store: Store, received: Received) -> State | None:
            return store.queue(self.broker.queue).states.get(int(received.position))


class SettlesWhatItSaysIsLost(Broken):
    """Tells the truth of the lease, and moves the message all the same."""

    caught_by = "settling_after_the_lease_has_run_out_changes_nothing[memory-terminate]"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | None:
            answer = super().settle_one(store, received, outcome)
            queue = store.queue(self.broker.queue)
            if isinstance(answer, LeaseLost) and int(received.position) in queue.messages:
                store.add(self.broker.dead_letter_queue, queue.drop(int(received.position)))
            return answer


class EndsTheNextHoldersLease(Broken):
    """Knows a lease by its message alone."""

    caught_by = "a_lost_lease_leaves_the_message_to_its_new_holder[memory-give-back]"

    class ReceiverRole(MemoryReceiver):
        def held(self, store: Store, received: Received) -> State | None:
            state = store.queue(self.broker.queue).states.get(int(received.position))
            return state if state and state.visible > time.monotonic() else None


class AcceptsTwice(Broken):
    """What is not there is taken for done."""

    caught_by = "settling_twice_is_a_lost_lease[memory-accept]"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | None:
            answer = super().settle_one(store, received, outcome)
            return None if isinstance(outcome, Accept) else answer


class FailsAllForOneLostLease(Broken):
    caught_by = "one_lost_lease_among_good_ones_harms_none_of_them"

    class ReceiverRole(MemoryReceiver):
        def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | None]:
            answers = super().settle(outcomes)
            lost = next((each for each in answers if isinstance(each, LeaseLost)), None)
            return answers if lost is None else [lost] * len(answers)


class SettlesCumulatively(Broken):
    """Accepting one accepts all before it."""

    caught_by = "settling_one_message_is_not_cumulative"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | None:
            answer = super().settle_one(store, received, outcome)
            queue = store.queue(self.broker.queue)
            for position in [at for at in queue.messages if at < int(received.position)]:
                queue.drop(position)
            return answer


class LosesWhatIsGivenBack(Broken):
    caught_by = "what_is_given_back_comes_again_soon"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | None:
            return super().settle_one(store, received, Accept() if isinstance(outcome, Release) else outcome)


class HidesWhatWasAccepted(Broken):
    """Until its lease would have run out."""

    caught_by = "an_accepted_message_is_gone_for_good"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | None:
            return None if isinstance(outcome, Accept) else super().settle_one(store, received, outcome)


class ExtendsNothing(Broken):
    """Says when the lease will end, and leaves it as it is."""

    caught_by = "a_prolonged_lease_outlasts_its_first_end"

    class ReceiverRole(MemoryReceiver):
        def extend_one(self, store: Store, received: Received, seconds: float) -> Received | LeaseLost:
            return replace(received, expires=time.monotonic() + seconds)


class ExtendsALostLease(Broken):
    caught_by = "a_lost_lease_is_not_prolonged"

    class ReceiverRole(MemoryReceiver):
        def extend_one(self, store: Store, received: Received, seconds: float) -> Received | LeaseLost:
            state = store.queue(self.broker.queue).state(int(received.position))
            state.lease, state.visible = received.lease[1], time.monotonic() + seconds
            return replace(received, expires=state.visible)


class ExtendsFromTheEnd(Broken):
    """Adds to what is left."""

    caught_by = "a_lease_is_prolonged_from_now_and_not_from_its_end"

    class ReceiverRole(MemoryReceiver):
        def extend_one(self, store: Store, received: Received, seconds: float) -> Received | LeaseLost:
            assert received.expires is not None
            return super().extend_one(store, received, received.expires - time.monotonic() + seconds)


class ExtendsThoughItSaysNone(Broken):
    caught_by = "without_extension_asking_for_it_is_unsupported"
    capabilities = PLAIN

    class ReceiverRole(MemoryReceiver):
        def extend(self, leases: Sequence[Received], seconds: float) -> Sequence[Received | LeaseLost]:
            return list(leases)


class NumbersEachDelivery(Broken):
    """And says that its numbers last."""

    caught_by = "a_position_that_is_said_to_last_is_there_when_its_message_is_given_again"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            received = super().give(store, queue, position, state)
            return replace(received, position=str(state.lease))
