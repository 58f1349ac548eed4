"""The sender role: messages are published one behind another, and the stream's confirmations come later."""

from __future__ import annotations

import json
from typing import Any, Final

from redelivery.contract.broker import Sender, Settled
from redelivery.contract.message import Batch, Column
from redelivery.errors import BrokerError, Fatal, Permanent, Retriable
from redelivery.kit.errors import Code
from redelivery.kit.in_flight import InFlight, SentBatch, time_left
from redelivery_nats import codec
from redelivery_nats.address import Address, check_subject
from redelivery_nats.client.asking import Asking
from redelivery_nats.client.connection import Connection, answered, command, stored
from redelivery_nats.errors import NOBODY, TABLE, ApiError, OtherStreamError, StatusError
from redelivery_nats.options import Settings

#: Rows that are written at once.
_AT_ONCE: Final = 256
#: The code of a message that expects another stream.
_OTHER_STREAM: Final = 10060
#: No stream can be called so: a message that expects it is refused by any stream, and stored by none.
_PROBE: Final = b"NATS/1.0\r\nNats-Expected-Stream: .\r\n\r\n"


class NatsSender(Asking, Sender):
    """Publishes to a stream's subject, or to a row's own."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__(address, settings)
        self._in_flight = InFlight("nats", self._place, window=settings.in_flight)
        #: Rows whose subject nobody listens to, by subject, until the server has said whether a stream has it.
        self._nowhere: dict[str, list[tuple[SentBatch, int]]] = {}

    def check(self, *, deadline: float) -> None:
        doing, subject = "looking for", self._address.subject
        time_left(deadline, self.doing(f"nats: {doing}"))
        (answer,) = self._ask(doing, [(subject, b"", _PROBE)], end=deadline)
        if isinstance(answer, StatusError) and answer.status == NOBODY:
            raise self._nobody(doing, subject, answer)
        if isinstance(answer, Exception):
            raise TABLE.error(answer, self.doing(doing), safe=True, needs=f"the right to publish to {subject}")
        try:
            told = json.loads(answer)
            refused, stream = ApiError(told["error"]), told.get("stream")
        except (ValueError, TypeError, LookupError, AttributeError):
            text = f"something else than a stream answers to the subject {subject!r}; correct the URL"
            raise Fatal(f"nats: {self.doing(doing)}: {text}", code=Code.MISCONFIGURED) from None
        if refused.err_code != _OTHER_STREAM:
            raise TABLE.error(refused, self.doing(doing), safe=True, rows=1).reclassified(Retriable)
        if stream != self._address.stream:
            raise TABLE.error(OtherStreamError(f"the stream {stream!r} has its subject"), self.doing(doing))

    def send(self, batch: Batch, *, deadline: float) -> None:
        self.check_open("sending to")
        connection = self._connected(time_left(deadline, self.doing("nats: sending to")))
        sent = self._in_flight.add(batch, deadline)
        for start in range(0, batch.length, _AT_ONCE):
            if not self._in_flight.wait_for_room(deadline):
                break  # `collect` tells of the rest
            self._write(connection, sent, range(start, min(start + _AT_ONCE, batch.length)))
        if connection.lost is not None:  # perhaps before this batch was added
            self._disconnected(connection.lost)

    def collect(self, wait: float) -> list[Settled]:
        settled = self._in_flight.collect(wait)
        if self._connection is not None and any(each.failures for each in settled):
            # An answer that did not come by the deadline may never come, and would keep its batch.
            self._connection.forget_if(lambda one: isinstance(one, SentBatch) and one.is_settled)
        return settled

    def _new_connection(self) -> Connection:
        return Connection(self._address, self._settings, self._place, on_lost=self._disconnected)

    def _write(self, connection: Connection, sent: SentBatch, rows: range) -> None:
        batch, own = sent.batch, self._address.subject
        most = self._largest(connection)
        is_source = not self._address.is_dead_letters
        columns: tuple[Column[Any] | None, ...] = (
            batch.key,
            batch.headers,
            batch.id,
            batch.identity,
            batch.timestamp_ms,
            batch.destination,
        )
        values = batch.value.values
        none: list[Any] = [None] * batch.length
        keys, headers, ids, identities, times, targets = (none if each is None else each.values for each in columns)
        written: list[bytes] = []
        for index in rows:
            subject = own
            try:
                if targets[index] is not None:
                    subject = check_subject(targets[index])
                block, payload = codec.encode(
                    values[index],
                    keys[index],
                    headers[index] or (),
                    ids[index],
                    identities[index],
                    times[index],
                    most=most,
                    recognised=is_source,
                    subject=None if subject == own else subject,
                )
            except BrokerError as error:
                self._in_flight.failed(sent, index, error)
                continue
            if self._in_flight.sent(sent, index):
                reply = connection.expect(self._answered, subject, sent, index)
                written.append(command(subject, reply, payload, block))
        connection.write(b"".join(written))

    # --- in the connection's thread ---

    def _answered(self, answer: bytes | Exception, sent: SentBatch, index: int) -> None:
        if isinstance(answer, bytes) and answer.startswith(b'{"stream":"') and b'"error":' not in answer:
            self._in_flight.stored(sent, index, duplicate=b'"duplicate":' in answer)
            return
        try:
            self._in_flight.stored(sent, index, duplicate=stored(answer))
        except StatusError as error:
            if error.status == NOBODY:
                self._look_for(self._subject_of(sent, index), sent, index)
            else:
                self._fail(sent, index, error)
        except Exception as error:  # noqa: BLE001 - the table sorts it
            self._fail(sent, index, error)

    def _subject_of(self, sent: SentBatch, index: int) -> str:
        named = None if sent.batch.destination is None else sent.batch.destination.values[index]
        return self._address.subject if named is None else named

    def _look_for(self, subject: str, sent: SentBatch, index: int) -> None:
        """Ask whether a stream has the subject: one that is moving to another server answers nobody for a moment."""
        rows = self._nowhere.setdefault(subject, [])
        rows.append((sent, index))
        connection = self._connection
        # Each batch asks: an answer may be lost where no server leads.
        if connection is not None and (len(rows) == 1 or rows[-2][0] is not sent):
            rows[:] = [each for each in rows if not each[0].is_settled]
            asked = f"{self._settings.api_prefix}.STREAM.NAMES"
            reply = connection.expect(self._looked, asked, subject)
            connection.write(command(asked, reply, json.dumps({"subject": subject}).encode()))

    def _looked(self, answer: bytes | Exception, subject: str, _: object) -> None:
        cause = StatusError(NOBODY, "no responders")
        for sent, index in self._nowhere.pop(subject, ()):
            try:
                error = self._silent("sending to", subject, answered(answer), cause)
            except Exception as failure:  # noqa: BLE001 - the table sorts it
                error = self._api_error(failure, "sending to", f"{self._settings.api_prefix}.STREAM.NAMES")
            is_rows = isinstance(error, Fatal) and subject != self._address.subject
            is_rows = is_rows and error.code is not Code.UNSUPPORTED
            self._in_flight.failed(sent, index, error.reclassified(Permanent) if is_rows else error)

    def _fail(self, sent: SentBatch, index: int, error: Exception) -> None:
        subject = self._subject_of(sent, index)
        own, needs = subject == self._address.subject, f"the right to publish to {subject}"
        told = TABLE.error(error, self.doing("sending to"), rows=1, own_target=own, needs=needs)
        self._in_flight.failed(sent, index, told)

    def _disconnected(self, error: Exception) -> None:
        self._nowhere.clear()
        self._in_flight.lost(TABLE.error(error, self.doing("sending to")))
