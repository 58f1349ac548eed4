"""`Record`: one row that failed or has to wait. Rows that are delivered at once never become a record.

It holds what happened to the row, and decides nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from redelivery.base.urls import redact
from redelivery.contract.broker import Capabilities, Received
from redelivery.contract.context import ErrorContext, Stage, qualified
from redelivery.contract.message import Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, thrown
from redelivery.formats import dialects, events, identity, signing


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where rows come from, as letters and reports show it.

    Attributes:
        run: names the job; the same for all its tasks and their retries.
        query, batch: the streaming query and micro-batch.
        partition: the Spark partition.
        configs: the job's options, redacted, for contexts and logs that ask for them.
    """

    run: str
    query: str | None = None
    batch: str | None = None
    partition: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)


class Owner:
    """Who handed a row over: knows more of it than the engine, and is notified of its end. The base does nothing.

    Attributes:
        subscriber: the named subscription that gave the row up.
        rename_type: the type under which an event is reposted to a sink.
        context: why the row was given up, where its broker decided that.
        lost: another consumer has the message now.
    """

    subscriber: str | None = None
    rename_type: str | None = None
    context: ErrorContext | None = None
    lost: bool = False

    @property
    def received(self) -> Received | None:
        """The message under its lease as last prolonged; None: it has no lease."""
        return None

    def handled(self) -> None:
        """Take note: a sink has confirmed the row, or it was skipped."""

    def moved(self) -> None:
        """Take note: the broker itself has moved the message to its dead letter queue, which ended the lease."""

    def lose(self) -> None:
        """Take note: the lease is gone."""


#: The owner of a job's rows.
NOBODY: Final = Owner()


@dataclass(slots=True, kw_only=True, eq=False)
class Record:
    """A row that failed, in the send queue where it now is.

    Attributes:
        message: the row as it was sent first, never altered.
        outgoing: what this send queue sends: the message itself, or its letter.
        attempts, first_attempt: in this send queue.
        isolated: must be sent alone.
        isolating: the next attempt only finds the culprit, and does not count.
        counted: the last attempt counted.
        untried: attempts that counted although none was made, because the destination accepted nothing.
        position: among all rows that the engine has taken.
        holds: its key is held because of it (`KeyOrder`).
        component: fully qualified name of the code that failed it; None: the destination's sender.
        sent: attempts at the job's own destination.
        ambiguous: one of them ended ambiguous.
        seconds: how long those attempts took, including the waits between them.
        letter_context: why it was given up; None before.
        primary: the error for which it was given up; None before.
        sink_errors: the errors of the sinks that could not take it.
        owner: who handed it over, and is notified of its end.
        wrapped: its send queue gets an event that stands for it, because the queue has refused its content.
    """

    message: Message
    outgoing: Message
    attempts: int = 0
    first_attempt: float = 0.0
    isolated: bool = False
    isolating: bool = False
    counted: bool = True
    untried: int = 0
    position: int = 0
    holds: bool = False
    retried: bool = False
    sent: int = 0
    ambiguous: bool = False
    stage: Stage = "TASK_PUT"
    component: str | None = None
    why: str = ""
    seconds: float = 0.0
    letter_context: ErrorContext | None = None
    primary: BrokerError | None = None
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    sink_errors: list[str] = field(default_factory=list)
    owner: Owner = NOBODY
    wrapped: bool = False

    def enter(self, outgoing: Message, *, wrapped: bool = False) -> None:
        """Begin again in the next send queue, or in the same one in another form."""
        self.outgoing = outgoing
        self.wrapped = wrapped
        self.attempts = self.untried = 0
        self.first_attempt = 0.0
        self.isolated = False
        self.isolating = False

    def begin_attempt(self, now: float) -> None:
        """Count the attempt that begins now."""
        if self.attempts == 0:
            self.first_attempt = now
        self.counted = not self.isolating
        self.attempts += self.counted
        self.isolating = False

    @property
    def reason(self) -> str:
        """The reason under which the account groups it: the code with the client's own word, or the error class."""
        error = self.primary
        return "" if error is None else error.label

    def context(self, origin: Origin, *, broker: str, component: str, destination: str) -> ErrorContext:
        """Return why the row was given up, for its letter.

        Args:
            origin: where the row comes from.
            broker: the plugin of the destination.
            component: fully qualified name of its sender's class.
            destination: its redacted URL.
        """
        if self.owner.context is not None:
            return self.owner.context
        error = self.primary
        history = dialects.history(self.message)
        received = self.owner.received
        source = None if received is None else received.source
        extra = {name: str(value) for name, value in self.message.extra.items() if value is not None}
        return ErrorContext(
            reason=redact(str(error)),
            kind=error.kind if error else "",
            code=error.code if error else None,
            native_code=error.native_code if error else None,
            exception=None if error is None else qualified(type(thrown(error))),
            stacktrace=redact("".join(traceback.format_exception(error))) if error else None,
            stage=self.stage,
            broker=broker,
            component=self.component or component,
            destination=destination,
            target=self.message.destination,
            message_id=self.message.id,
            identity=self.message.identity,
            attempts=self.sent,
            attempts_total=history.attempts_total + self.sent,
            hops=history.hops,
            first_failure_ms=self.first_failure_ms,
            last_failure_ms=self.last_failure_ms,
            run=origin.run,
            query=origin.query,
            batch=origin.batch,
            partition=origin.partition,
            position=self.position if received is None else None,
            source_topic=None if source is None else source.topic,
            source_partition=None if source is None else source.partition,
            source_offset=None if source is None else source.offset,
            source_timestamp_type=None if source is None else source.timestamp_type,
            subscriber=self.owner.subscriber,
            # A received message is no longer where it came from.
            maybe_delivered=self.ambiguous or (history.maybe_delivered and received is None),
            extra=extra,
        )

    def letter(
        self,
        context: ErrorContext,
        spec: DeliverySpec,
        capabilities: Capabilities,
        configs: Mapping[str, str],
        *,
        moved: bool = False,
        rename_type: str | None = None,
        wrapped: bool = False,
    ) -> Message:
        """Return the message with its context, in the form that a sink takes, with its own identity.

        Args:
            context: why.
            spec: the job's spec.
            capabilities: of the sink.
            configs: the job's options, redacted.
            moved: the broker moves the message itself: its body stays, unless the spec asks for another.
            rename_type: the sink's own type, which takes precedence over the record's and the spec's.
            wrapped: as an event that stands for the message.
        """
        kept = capabilities.columns.keys() - capabilities.routes
        columns = {name: value for name, value in self.message.extra.items() if name in kept}
        prefix = capabilities.cloudevents_prefix
        kept_identity = self.message.identity if self.owner.context is not None else None
        name = kept_identity or identity.of_letter(self.message, context, self.owner.received)
        message = dialects.strip(replace(self.message, destination=None, extra=columns, identity=name))
        if spec.format is not None:
            message = events.reformat(message, spec.format, prefix)
        rename_type = rename_type or self.owner.rename_type or spec.dead_letter_type
        if spec.sink_context_headers is False and wrapped:
            return dialects.wrap(message)
        if spec.sink_context_headers is False:
            return message if rename_type is None else dialects.renamed(message, rename_type)
        own = capabilities.context_dialect
        beside = not (moved and events.is_structured(message))
        return dialects.attach(
            message,
            context,
            dialect=dialects.chosen(spec.dead_letter_dialects or (None if beside else (own,)), own, message),
            limits=capabilities.limits,
            prefix=prefix,
            include_message=bool(spec.sink_include_messages),
            configs=configs if spec.sink_include_configs else None,
            rename_type=rename_type,
            wrapped=wrapped,
            key=None if spec.letter_key is None else signing.key(spec.letter_key),
        )
