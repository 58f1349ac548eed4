"""Brokers whose errors have the wrong code, or none. See `broken.py`."""

from __future__ import annotations

import time

from broken import Broken

from redelivery.codes import Code
from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch
from redelivery.errors import BrokerError, Fatal, NotSent, Permanent, Retriable
from redelivery_conformance.memory import NEVER_MADE, MemorySender, Store


class Recoding(MemorySender):
    """Says what the broker says, in words of its own."""

    def recoded(self, error: BrokerError) -> BrokerError:
        raise NotImplementedError

    def store_batch(self, store: Store, batch: Batch) -> Settled:
        settled = super().store_batch(store, batch)
        for each in settled.failures:
            changed = self.recoded(each.error)
            each.error.code, each.error.native_code = changed.code, changed.native_code
        return settled


class CallsLargeRowsInvalid(Broken):
    caught_by = "a_row_over_a_limit_is_too_large[memory-message_bytes]"

    class SenderRole(Recoding):
        def recoded(self, error: BrokerError) -> BrokerError:
            return Permanent(str(error), code=Code.INVALID_MESSAGE)


class SaysNothingOfAMissingTarget(Broken):
    """The client's word alone, as every plugin had it before there was a vocabulary."""

    caught_by = "a_row_for_a_target_that_does_not_exist_says_so"

    class SenderRole(Recoding):
        def recoded(self, error: BrokerError) -> BrokerError:
            return Permanent(str(error), native_code="MISSING")


class CallsAMissingTargetAMissingRight(Broken):
    caught_by = "a_url_whose_target_does_not_exist_says_so"

    def sender(self) -> Sender:
        if self.queue == NEVER_MADE:
            raise Fatal("memory: there is no such queue, or you must not see it", code=Code.NOT_AUTHORIZED)
        return super().sender()


class CallsAWrongPasswordALostConnection(Broken):
    """Its client knows only that the peer hung up."""

    caught_by = "a_wrong_login_is_an_error_of_the_login"

    def sender(self) -> Sender:
        try:
            return super().sender()
        except Fatal as error:
            raise (
                error.reclassified(type(error))
                if error.code is not Code.NOT_AUTHENTICATED
                else Retriable(str(error), code=Code.CONNECTION_LOST)
            ) from error


class CallsADeadlineAnOutage(Broken):
    caught_by = "a_deadline_that_has_passed_says_so"

    class SenderRole(MemorySender):
        def send(self, batch: Batch, *, deadline: float) -> None:
            if time.monotonic() >= deadline:
                raise Retriable("memory: no answer", code=Code.CONNECTION_LOST)
            super().send(batch, deadline=deadline)


class ReportsADeadBrokerAsABug(Broken):
    caught_by = "a_broker_that_does_not_exist_is_a_lost_connection"

    def store(self) -> Store:
        if self.host not in Store.by_name:
            raise Retriable("memory: an error nobody has foreseen", code=Code.BUG)
        return super().store()


class SaysNothingOfBeingClosed(Broken):
    caught_by = "a_closed_sender_says_so"

    class SenderRole(MemorySender):
        def send(self, batch: Batch, *, deadline: float) -> None:
            if self.closed:
                raise Fatal("memory: there is no connection")
            super().send(batch, deadline=deadline)


class BlamesTheKeptBackRow(Broken):
    """Of the right class, with the code of the row before it."""

    caught_by = "what_is_kept_back_is_not_sent"

    class SenderRole(Recoding):
        def recoded(self, error: BrokerError) -> BrokerError:
            return NotSent(str(error), code=Code.TOO_LARGE) if isinstance(error, NotSent) else error


class QuotesTheAnswerAsACode(Broken):
    """A whole sentence: no two rows have the same, so nothing can be grouped by it."""

    caught_by = "a_refused_row_has_a_code_and_a_native_code_that_is_a_word"

    class SenderRole(Recoding):
        def recoded(self, error: BrokerError) -> BrokerError:
            return Permanent(str(error), code=error.code, native_code=f"{error}\n" * 9)
