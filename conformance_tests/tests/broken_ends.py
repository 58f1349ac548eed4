"""Brokers whose messages do not end where they should: terminating, limits, expiry, redrive. See `broken.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from broken import Broken

from redelivery.contract.broker import Accept, Letter, Outcome, Received, Release, Retry, Settled, Terminate
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Batch, Message
from redelivery.errors import BrokerError, LeaseLost
from redelivery_conformance.memory import (
    PLAIN,
    MemoryBroker,
    MemoryDeadLetters,
    MemoryReceiver,
    MemorySender,
    Store,
)
from redelivery_conformance.memory_store import State

# --- terminating ---------------------------------------------------------------------------------------------------


class HasItsOwnWordForALimit(Broken):
    """Of what it gave up by itself."""

    caught_by = "a_message_given_too_often_goes_to_the_dead_letters[memory-retry]"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            for letter in super().browse():
                why = letter.context
                yield replace(letter, context=why and replace(why, kind="max-deliveries", code=None))


class DropsTheLetter(Broken):
    """Acknowledges, and then fails to produce."""

    caught_by = "a_terminated_message_is_gone_when_its_letter_is_there"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            store.queue(self.broker.queue).drop(position)


class ProducesLater(Broken):
    """Acknowledges first; the letter follows when the receiver is closed."""

    caught_by = "a_terminated_message_is_a_letter_whole_with_its_context"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            store.queue(self.broker.queue).drop(position)
            self.__dict__.setdefault("late", []).append(outcome.letter)

        def close(self) -> None:
            for letter in self.__dict__.pop("late", []):
                self.broker.store().add(self.broker.dead_letter_queue, letter)
            super().close()


class KeepsTheTerminatedMessage(Broken):
    """A copy goes, the message comes again."""

    caught_by = "a_terminated_message_is_gone_when_its_letter_is_there"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            store.add(self.broker.dead_letter_queue, outcome.letter)


class MovesTheMessageInPlaceOfTheLetter(Broken):
    """Its native move knows the message as it came, so the context is lost."""

    caught_by = "a_terminated_message_is_a_letter_whole_with_its_context"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            store.add(self.broker.dead_letter_queue, store.queue(self.broker.queue).drop(position))


class LosesTheLettersOwnHeaders(Broken):
    caught_by = "a_terminated_message_is_a_letter_whole_with_its_context"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            letter = replace(outcome.letter, headers=outcome.letter.headers[-2:])
            super().terminate(store, position, state, replace(outcome, letter=letter))


class DeduplicatesLetters(Broken):
    caught_by = "two_letters_of_one_id_are_both_kept"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            store.queue(self.broker.queue).drop(position)
            store.put(self.broker.dead_letter_queue, outcome.letter)


class DeduplicatesLettersThatAreSent(Broken):
    """By id, in the native place alone: that of a row that died before is known there."""

    caught_by = "letters_of_one_id_sent_to_the_native_place_are_all_kept"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            native = self.broker.queue == self.broker.dead_letter_queue
            return super().store_row(store, replace(message, identity=None) if native else message)


class LosesTheReason(Broken):
    caught_by = "the_native_place_keeps_the_reason"

    class ReceiverRole(MemoryReceiver):
        def terminate(self, store: Store, position: int, state: State, outcome: Terminate) -> None:
            super().terminate(store, position, state, replace(outcome, reason=""))


class TerminatesTwice(Broken):
    """Each call makes a letter."""

    caught_by = "terminating_twice_leaves_one_letter"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | BrokerError | None:
            answer = super().settle_one(store, received, outcome)
            if isinstance(outcome, Terminate) and isinstance(answer, LeaseLost):
                store.add(self.broker.dead_letter_queue, outcome.letter)
            return answer


class DropsALetterItCannotStore(Broken):
    """Too large for the dead letter place: gone from both."""

    caught_by = "a_letter_that_cannot_be_stored_is_refused_alone_and_its_message_kept"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | BrokerError | None:
            if isinstance(outcome, Terminate) and self.refused(outcome):
                outcome = Accept()
            return super().settle_one(store, received, outcome)


class TerminatesThoughItSaysNone(Broken):
    """Takes it for an acceptance."""

    caught_by = "without_terminating_asking_for_it_is_unsupported"
    capabilities = PLAIN

    class ReceiverRole(MemoryReceiver):
        def settle(self, outcomes: Sequence[tuple[Received, Outcome]]) -> Sequence[LeaseLost | BrokerError | None]:
            return super().settle([(received, Accept()) for received, _ in outcomes])


# --- what a broker dead-letters by itself --------------------------------------------------------------------------


class HasNoLimit(Broken):
    """A crash loop that goes on for ever."""

    caught_by = "a_message_given_too_often_goes_to_the_dead_letters[memory-retry]"

    class ReceiverRole(MemoryReceiver):
        def move(self, store: Store) -> None:
            pass


class CountsCrashesOnly(Broken):
    """A retry is no delivery to its limit."""

    caught_by = "a_message_given_too_often_goes_to_the_dead_letters[memory-retry]"

    class ReceiverRole(MemoryReceiver):
        def again(self, state: State, outcome: object) -> None:
            super().again(state, outcome)
            state.attempts = 0


class HasALimitItDoesNotTell(Broken):
    """Says that it has none, as a default that nobody has read."""

    caught_by = "without_a_limit_a_message_comes_however_often"
    capabilities = PLAIN

    class ReceiverRole(MemoryReceiver):
        def move(self, store: Store) -> None:
            for position, state in list(store.queue(self.broker.queue).due(time.monotonic())):
                if state.attempts >= 20:
                    store.bury(
                        self.broker.queue, position, self.broker.dead_letter_queue, Message(value=b"v"), ErrorContext()
                    )


class ForgetsWhatIsGivenBack(Broken):
    """What a subscription cannot handle is gone when it ends."""

    caught_by = "what_a_handler_gives_up_without_a_sink_stays"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome) -> LeaseLost | BrokerError | None:
            return super().settle_one(store, received, Accept() if isinstance(outcome, Release) else outcome)


class NeverGivesAgain(Broken):
    """Keeps what was put off for ever."""

    caught_by = "what_a_handler_raises_for_is_retried_and_then_a_letter"

    class ReceiverRole(MemoryReceiver):
        def again(self, state: State, outcome: Retry | Release) -> None:
            super().again(state, outcome)
            if isinstance(outcome, Retry) and outcome.delay:
                state.visible = float("inf")


class DropsWhatExpires(Broken):
    caught_by = "an_expired_message_goes_to_the_dead_letters"

    class ReceiverRole(MemoryReceiver):
        def move(self, store: Store) -> None:
            queue = store.queue(self.broker.queue)
            for position in [at for at, state in queue.states.items() if state.expires <= time.monotonic()]:
                queue.drop(position)


class KeepsTheReasonToItself(Broken):
    """Dead-letters, and does not say that it did."""

    caught_by = "what_the_broker_gave_up_is_forwarded_with_its_reason"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            return (replace(letter, context=None) for letter in super().browse())


class ExpiresAtOnce(Broken):
    """Takes seconds for something much smaller."""

    caught_by = "a_message_is_given_until_it_expires"

    def __init__(self, url: str, options: dict[str, str]) -> None:
        super().__init__(url, options)
        self.ttl /= 10**12


# --- redrive -------------------------------------------------------------------------------------------------------


class ConfirmsBeforeItStores(Broken):
    """So the letter is removed first."""

    caught_by = "a_letter_is_removed_only_after_it_was_stored"

    class SenderRole(MemorySender):
        def __init__(self, broker: MemoryBroker) -> None:
            super().__init__(broker)
            self.late: list[Batch] = []

        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if self.broker.queue == self.broker.dead_letter_queue:
                return super().store_batch(store, batch)
            self.late.append(batch)
            return Settled(batch=batch.number)

        def close(self) -> None:
            for batch in self.late:
                super().store_batch(self.broker.store(), batch)
            self.late = []


class DeletesLettersAsItBrowses(Broken):
    """A redrive that is killed has lost them."""

    caught_by = "killed_before_it_removes_a_redrive_leaves_the_letter_in_both_places"

    class LettersRole(MemoryDeadLetters):
        def browse(self):
            for letter in list(super().browse()):
                self.messages().pop(int(letter.position))
                yield letter


class SaysThatItRemoved(Broken):
    """And does not."""

    caught_by = "a_second_redrive_finds_nothing"

    class LettersRole(MemoryDeadLetters):
        def remove(self, positions: Sequence[str]) -> int:
            return len(positions)


class RemovesAll(Broken):
    """Where some were named."""

    caught_by = "a_redrive_of_some_leaves_the_others"

    class LettersRole(MemoryDeadLetters):
        def remove(self, positions: Sequence[str]) -> int:
            self.purge()
            return len(positions)


class KnowsALetterByItsOldId(Broken):
    """De-duplicates by what stands before the mark."""

    caught_by = "a_redriven_letter_is_not_taken_for_the_message_that_it_was"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            name = (message.id or "").partition("~")[0]
            return name not in store.queue(self.broker.queue).taken and super().store_row(store, message)


class ForgetsThatItDeduplicates(Broken):
    """Ids are not remembered from one connection to the next."""

    caught_by = "killed_before_it_removes_a_redrive_leaves_the_letter_in_both_places"

    def sender(self):
        for queue in self.store().queues.values():
            queue.taken.clear()
        return super().sender()


class CountsOn(Broken):
    """By id, so that a letter comes back at the attempt at which it died."""

    caught_by = "a_redriven_letter_starts_again_at_the_first_attempt"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            stored = super().store_row(store, message)
            queue = store.queue(self.broker.queue)
            queue.state(max(queue.messages)).attempts = 3
            return stored


class DropsTheMarker(Broken):
    """A header that it does not know."""

    caught_by = "totals_and_hops_survive_each_redrive"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            if self.broker.queue == self.broker.dead_letter_queue:
                return super().store_row(store, message)
            return super().store_row(store, replace(message, headers=message.headers[:2]))


class PurgesWhatIsInHand(Broken):
    caught_by = "purging_letters_leaves_what_is_in_hand"

    class LettersRole(MemoryDeadLetters):
        def purge(self) -> int:
            for state in self.broker.store().queue(self.broker.queue).states.values():
                state.lease = 0
            return super().purge()


class HidesWhatIsInHand(Broken):
    """Its depth is what could be given now."""

    caught_by = "depth_counts_what_is_in_hand"

    class AdminRole(MemoryBroker.AdminRole):
        def depth(self) -> int:
            return len(list(self.broker.store().queue(self.broker.queue).due(time.monotonic())))


# --- subscriptions -------------------------------------------------------------------------------------------------


class LosesMessagesToSlowHandlers(Broken):
    """Prolongs their leases in word only."""

    caught_by = "a_slow_handler_keeps_its_message"

    class ReceiverRole(MemoryReceiver):
        def extend_one(self, store: Store, received: Received, seconds: float) -> Received | LeaseLost:
            return replace(received, expires=time.monotonic() + seconds)
