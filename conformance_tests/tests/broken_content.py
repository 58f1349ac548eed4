"""Brokers that store something else than they were given: content, headers, ids. See `broken.py`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from broken import Broken, rewriting

from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Message
from redelivery.errors import Permanent
from redelivery_conformance.memory import (
    BARE,
    MemoryBroker,
    MemoryDeadLetters,
    MemorySender,
    Store,
)

# --- stored wrongly ------------------------------------------------------------------------------------------------


class LosesTheLastOfMany(Broken):
    """A slice of a large batch that is never sent."""

    caught_by = "every_row_of_a_large_batch_is_stored_once"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if batch.length < 5_000:
                return super().store_batch(store, batch)
            super().store_batch(store, Batch.of(list(batch.rows())[:-1], number=batch.number))
            return Settled(batch=batch.number)


class ConfirmsTooEarly(Broken):
    """Keeps rows in a buffer, and stores them when it is closed."""

    caught_by = "a_row_is_stored_by_the_time_it_is_confirmed"

    class SenderRole(MemorySender):
        def __init__(self, broker: MemoryBroker) -> None:
            super().__init__(broker)
            self.late: list[Batch] = []

        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if any(map(self.broker.fault, batch.rows())) or batch.id is None or any(batch.id.values):
                return super().store_batch(store, batch)
            self.late.append(batch)
            return Settled(batch=batch.number)

        def close(self) -> None:
            for batch in self.late:
                super().store_batch(self.broker.store(), batch)
            self.late = []
            super().close()


class CutsBodies(Broken):
    """A body ends at a mebibyte."""

    caught_by = "a_large_value_comes_back_whole[memory-10MiB]"
    SenderRole = rewriting(value=lambda m: m.value and m.value[: 1 << 20])


class EndsBodiesAtANul(Broken):
    caught_by = "any_bytes_come_back_as_they_were[memory-nul]"
    SenderRole = rewriting(value=lambda m: m.value and m.value.partition(b"\0")[0])


class DecodesBodies(Broken):
    """Bytes that are no text are mended."""

    caught_by = "any_bytes_come_back_as_they_were[memory-not-utf8]"
    SenderRole = rewriting(value=lambda m: m.value and m.value.decode("utf-8", "replace").encode())


class DropsExtensions(Broken):
    """The JSON of an event is written anew, without what the specification does not name."""

    caught_by = "what_any_broker_can_take_is_storable_here_wrapped[memory-bytes in all of it]"
    SenderRole = rewriting(value=lambda m: m.value and m.value.replace(b'"redeliverymessage"', b'"other"'))


class KeepsTheFirstOfAName(Broken):
    """Of several headers with one name only the first is stored, though its limits say that names repeat."""

    caught_by = "a_letter_of_connect_s_that_dies_again_says_why_and_goes_back_as_it_was"
    SenderRole = rewriting(
        headers=lambda m: tuple({name: (name, value) for name, value in m.headers[::-1]}.values())[::-1]
    )


class MakesNullEmpty(Broken):
    caught_by = "a_null_value_comes_back_null_and_an_empty_one_empty"
    SenderRole = rewriting(value=lambda m: m.value or b"")


class MakesEmptyKeysNull(Broken):
    caught_by = "an_empty_key_is_kept_apart_from_none_or_refused"
    SenderRole = rewriting(key=lambda m: m.key or None)


class RoundsTimestamps(Broken):
    caught_by = "timestamps_come_back_to_the_millisecond"
    SenderRole = rewriting(timestamp_ms=lambda m: m.timestamp_ms and m.timestamp_ms // 1000 * 1000)


class IgnoresDestinations(Broken):
    """All rows go to the URL's own target."""

    caught_by = "each_row_goes_to_its_own_destination"
    SenderRole = rewriting(destination=lambda m: m.destination and None)


class AltersTheBatch(Broken):
    caught_by = "a_batch_is_left_as_it_was_given"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            batch.value.values.clear()
            return settled


class NeedsEveryColumn(Broken):
    """Its own errors come out: an absent column was not thought of."""

    caught_by = "a_batch_of_values_alone_is_stored"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            assert batch.key is not None
            assert len(batch.key.values) == batch.length
            return super().store_batch(store, batch)


# --- headers -------------------------------------------------------------------------------------------------------


class DropsRepeatedHeaders(Broken):
    caught_by = "odd_headers_come_back_or_the_row_is_refused_alone[memory-repeated-name]"
    SenderRole = rewriting(headers=lambda m: tuple(dict(m.headers).items()))


class SortsHeaders(Broken):
    caught_by = "headers_come_back_in_their_order"
    SenderRole = rewriting(headers=lambda m: tuple(sorted(m.headers, key=lambda each: each[0])))


class LowersHeaderNames(Broken):
    caught_by = "header_names_keep_their_case"
    SenderRole = rewriting(headers=lambda m: tuple((name.lower(), value) for name, value in m.headers))


class DecodesHeaders(Broken):
    caught_by = "header_values_keep_their_bytes"
    SenderRole = rewriting(
        headers=lambda m: tuple((n, v and v.decode("latin-1").encode("ascii", "replace")) for n, v in m.headers)
    )


class GivesAllRowsTheFirstHeaders(Broken):
    """Headers are encoded once a batch."""

    caught_by = "rows_keep_their_own_headers"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            if batch.isolate:
                return super().store_batch(store, batch)
            rows = [replace(row, headers=batch.row(0).headers) for row in batch.rows()]
            return super().store_batch(store, Batch.of(rows, number=batch.number))


class DropsHeadersItCannotCarry(Broken):
    """Says that it has no headers, and takes rows with some."""

    caught_by = "without_headers_a_row_with_some_is_refused_alone"
    capabilities = BARE
    SenderRole = rewriting(headers=lambda m: ())

    def fault(self, message: Message) -> Permanent | None:
        return super().fault(replace(message, headers=()))


# --- ids -----------------------------------------------------------------------------------------------------------


class ForgetsIds(Broken):
    caught_by = "an_id_comes_back_as_it_was_or_the_row_is_refused_alone[memory-plain]"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            stored = super().store_row(store, message)
            queue = store.queue(message.destination or self.broker.queue).messages
            for position, kept in queue.items():
                queue[position] = replace(kept, id=None)
            return stored


class ForgetsIdsOfWhatWasRemoved(Broken):
    caught_by = "an_id_stays_taken_when_its_message_is_removed"

    class LettersRole(MemoryDeadLetters):
        def remove(self, positions: Sequence[str]) -> int:
            self.broker.store().queue(self.queue).taken.clear()
            return super().remove(positions)


class DeduplicatesAcrossDestinations(Broken):
    caught_by = "an_id_taken_at_one_destination_is_free_at_another"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            taken = {id_ for queue in store.queues.values() for id_ in queue.taken}
            return message.id not in taken and super().store_row(store, message)


class KeepsDuplicatesToItself(Broken):
    """Its broker tells of them, and nobody passes it on."""

    caught_by = "an_id_that_was_taken_is_taken_again_but_not_stored_again"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            return replace(super().store_batch(store, batch), duplicates=0)


class DeduplicatesByValue(Broken):
    caught_by = "equal_messages_are_all_stored"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            there = store.queue(message.destination or self.broker.queue).messages.values()
            return message.value not in {each.value for each in there} and super().store_row(store, message)


class StoresEachIdAgain(Broken):
    """Claims to de-duplicate."""

    caught_by = "an_id_that_was_taken_is_taken_again_but_not_stored_again"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            store.queue(message.destination or self.broker.queue).taken.clear()
            return super().store_row(store, message)


class TakesTheIdOfARefusedRow(Broken):
    caught_by = "a_refused_row_leaves_its_id_free"

    class SenderRole(MemorySender):
        def store_batch(self, store: Store, batch: Batch) -> Settled:
            settled = super().store_batch(store, batch)
            refused = {batch.row(each.index).id for each in settled.failures}
            store.queue(self.broker.queue).taken.update(id_ for id_ in refused if id_)
            return settled


# --- identities ----------------------------------------------------------------------------------------------------


class RecognisesByIdAlone(Broken):
    """As every broker did before there were identities."""

    caught_by = "messages_of_one_id_and_different_identity_are_all_stored_under_that_id"
    SenderRole = rewriting(identity=lambda _: None)


class RecognisesByIdentityAndId(Broken):
    caught_by = "an_identity_that_was_taken_is_taken_again_but_not_stored_again"
    SenderRole = rewriting(identity=lambda m: m.identity and f"{m.identity} {m.id}")


class CutsIdentities(Broken):
    """To what its column holds."""

    caught_by = "an_identity_may_be_any_text_of_any_length"
    SenderRole = rewriting(identity=lambda m: m.identity and m.identity[:128])


class LosesTheIdForTheIdentity(Broken):
    """Its messages have one name, so that of a letter is none that anybody knows."""

    caught_by = "letters_of_one_id_sent_to_a_sink_by_url_are_all_kept"
    SenderRole = rewriting(id=lambda m: m.identity or m.id)


class RecognisesNoLetter(Broken):
    """What has an identity of its own is stored each time."""

    caught_by = "the_very_same_letter_sent_again_is_one"
    SenderRole = rewriting(identity=lambda m: m.identity and f"{m.identity} {time.monotonic_ns()}")


class TakesARowForALetterOfItsId(Broken):
    """Remembers the id beside the identity."""

    caught_by = "a_place_of_letters_is_a_destination_for_others"

    class SenderRole(MemorySender):
        def store_row(self, store: Store, message: Message) -> bool:
            stored = super().store_row(store, message)
            if message.id is not None:
                store.queue(message.destination or self.broker.queue).taken.add(message.id)
            return stored
