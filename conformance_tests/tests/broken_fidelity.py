"""Brokers that change other applications' messages. See `broken.py`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from broken import Broken, rewriting

from redelivery.contract.broker import Letter, Outcome, Received, Release, Retry
from redelivery.contract.message import Message
from redelivery_conformance.memory import MemoryDeadLetters
from redelivery_conformance.memory_receiver import MemoryReceiver
from redelivery_conformance.memory_store import Queue, State, Store


class SendsWhatFieldsSay(Broken):
    """Properties that no field of a message holds are lost."""

    caught_by = "a_foreign_letter_is_redriven_as_it_was"
    SenderRole = rewriting(native=lambda _: None)


class RenamesLetters(Broken):
    """An id of its own for what it sends, in place of the application's."""

    caught_by = "a_foreign_letter_that_dies_again_is_redriven_as_it_was"
    SenderRole = rewriting(id=lambda m: m.id and f"{m.id}-again")


class RetypesHeaders(Broken):
    """A number is a text of digits for it."""

    caught_by = "a_foreign_message_that_dies_here_is_redriven_as_it_was"

    class ReceiverRole(MemoryReceiver):
        def give(self, store: Store, queue: Queue, position: int, state: State) -> Received:
            given = super().give(store, queue, position, state)
            native = {**(given.message.native or {}), "tables": {"deep": [1, 1, 1.5, None]}}
            return replace(given, message=replace(given.message, native=native))


class TakesTheIdForAnother(Broken):
    """Recognises a redriven message by the application's id alone."""

    caught_by = "a_foreign_message_that_dies_here_is_redriven_as_it_was"
    SenderRole = rewriting(identity=lambda _: None)


class StampsWhatItShows(Broken):
    """A look leaves its trace."""

    caught_by = "looking_at_a_foreign_letter_changes_nothing"

    class LettersRole(MemoryDeadLetters):
        def browse(self) -> Iterator[Letter]:
            messages = self.messages()
            for position, message in list(messages.items()):
                messages[position] = replace(message, native={**(message.native or {}), "seen": True})
            return super().browse()


class StampsWhatItTakesBack(Broken):
    """A message given back has another property."""

    caught_by = "a_foreign_message_that_is_given_back_is_as_it_was"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome):
            if isinstance(outcome, Release):
                queue = store.queue(self.broker.queue)
                message = queue.messages[received.lease[0]]
                queue.messages[received.lease[0]] = replace(message, native={"returned": True})
            return super().settle_one(store, received, outcome)


class CopiesWithoutHeaders(Broken):
    """A delay is a copy, and the copy has texts only."""

    caught_by = "a_foreign_message_is_redelivered_as_it_was"

    class ReceiverRole(MemoryReceiver):
        def settle_one(self, store: Store, received: Received, outcome: Outcome):
            if isinstance(outcome, Retry):
                queue = store.queue(self.broker.queue)
                message: Message = queue.messages[received.lease[0]]
                queue.messages[received.lease[0]] = replace(message, headers=message.headers[:1])
            return super().settle_one(store, received, outcome)
