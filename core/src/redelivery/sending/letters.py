"""Letters of a group: the messages with their error context, in the form that a sink takes, made by column.

Parts that all rows of a group share are written once.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from types import TracebackType
from typing import Any, Final, NamedTuple

from redelivery.base.secrets import redact_all
from redelivery.base.urls import redact
from redelivery.contract.broker import Capabilities
from redelivery.contract.context import ErrorContext, qualified
from redelivery.contract.message import Batch, Column, Message
from redelivery.contract.spec import DeliverySpec
from redelivery.errors import BrokerError, thrown
from redelivery.formats import dialects, events, identity, signing
from redelivery.formats.dialects import DeliveryHistory
from redelivery.sending.group import Group, Origin, joined

#: Letters that are made at a time: the engine shows that it is alive in between.
_PIECE: Final = 3000
_NONE: Final = DeliveryHistory()
#: Longer chains are formatted one by one: a chain may be a ring.
_LONGEST_CHAIN: Final = 20
#: What makes texts that say all of an error; of the special ones `traceback` shows more.
_PLAIN_TEXT: Final = frozenset({BaseException.__str__, OSError.__str__, KeyError.__str__})
_SPECIAL: Final = (NameError, AttributeError, ImportError, SyntaxError, BaseExceptionGroup)
_CAUSED: Final = "\nThe above exception was the direct cause of the following exception:\n\n"
_DURING: Final = "\nDuring handling of the above exception, another exception occurred:\n\n"


@dataclass(frozen=True, slots=True)
class Contexts:
    """Why the rows of a group were given up.

    Attributes:
        common: the context of all; what differs is unset.
        varying: the fields that differ, one value per row.
    """

    common: ErrorContext
    varying: Mapping[str, Sequence[Any]]

    def row(self, index: int) -> ErrorContext:
        """Return the context of one row."""
        return replace(self.common, **{name: values[index] for name, values in self.varying.items()})

    def take(self, rows: Sequence[int]) -> Contexts:
        """Return the contexts of some rows."""
        return Contexts(self.common, {name: [values[row] for row in rows] for name, values in self.varying.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """Says why rows were given up.

    Attributes:
        origin: where the rows come from.
        broker: the plugin of the destination.
        component: fully qualified name of its sender's class.
        destination: its redacted URL.
    """

    origin: Origin
    broker: str
    component: str
    destination: str

    def contexts(self, group: Group) -> Contexts:
        """Return why the rows of a group were given up."""
        owner, messages = group.owner, group.messages
        if owner.context is not None:
            return Contexts(owner.context, {})
        received = owner.received
        source = None if received is None else received.source
        varying: dict[str, Sequence[Any]] = {}
        for name, column in (
            ("target", messages.destination),
            ("message_id", messages.id),
            ("identity", messages.identity),
        ):
            if column is not None:
                varying[name] = column.values
        if received is None:
            varying["position"] = list(group.positions)
        if messages.extra:
            varying["extra"] = _extras(messages)
        if len(group.spans) > 1:
            varying["traceparent"] = group.spans
        histories = _histories(messages)
        if histories is not None:
            varying["attempts_total"] = [each.attempts_total + group.sent for each in histories]
            varying["hops"] = [each.hops for each in histories]
            # A received message is no longer where it came from.
            varying["maybe_delivered"] = [
                group.ambiguous or (each.maybe_delivered and received is None) for each in histories
            ]
        error = group.error(0)
        told = _Told.of(error)
        if len(group.errors) > 1:
            varying |= _several(group.errors)
        common = ErrorContext(
            reason=told.reason,
            kind=error.kind if error else "",
            code=error.code if error else None,
            native_code=error.native_code if error else None,
            exception=told.exception,
            stacktrace=told.stacktrace,
            stage=group.stage,
            broker=self.broker,
            component=group.component or self.component,
            destination=self.destination,
            attempts=group.sent,
            attempts_total=group.sent,
            first_failure_ms=group.first_failure_ms,
            last_failure_ms=group.last_failure_ms,
            run=self.origin.run,
            query=self.origin.query,
            batch=self.origin.batch,
            partition=self.origin.partition,
            source_topic=None if source is None else source.topic,
            source_partition=None if source is None else source.partition,
            source_offset=None if source is None else source.offset,
            source_timestamp_type=None if source is None else source.timestamp_type,
            subscriber=owner.subscriber,
            maybe_delivered=group.ambiguous,
            traceparent=group.spans[0] if len(group.spans) == 1 else None,
        )
        return Contexts(common, varying)


class _Told(NamedTuple):
    """The details of an error in a letter, beyond those that the errors of a group share."""

    reason: str
    exception: str | None
    stacktrace: str | None

    @classmethod
    def of(cls, error: BrokerError | None) -> _Told:
        return cls(
            redact(str(error)),
            None if error is None else qualified(type(thrown(error))),
            None if error is None else redact("".join(traceback.format_exception(error))),
        )


def _several(errors: Sequence[BrokerError]) -> dict[str, Sequence[str | None]]:
    """Return the same of several errors, a column per field."""
    known = {id(error): error for error in errors}
    forms: dict[object, str] = {}
    reasons = redact_all([str(error) for error in known.values()])
    traces = redact_all([_formatted(error, forms) for error in known.values()])
    names = [qualified(type(thrown(error))) for error in known.values()]
    told = dict(zip(known, map(_Told, reasons, names, traces), strict=True))
    return dict(zip(_Told._fields, zip(*(told[id(error)] for error in errors), strict=True), strict=True))


def _formatted(error: BaseException, forms: dict[object, str]) -> str:
    """Return an error with its stack trace and what it is chained from, as `traceback.format_exception` does.

    Args:
        error: the error.
        forms: what stands before the text of an error that was raised in one place; filled here.
    """
    parts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        if len(parts) > _LONGEST_CHAIN or type(link).__str__ not in _PLAIN_TEXT or isinstance(link, _SPECIAL):
            return "".join(traceback.format_exception(error))
        parts.insert(0, _alone(link, forms))
        between = _DURING if link.__cause__ is None else _CAUSED
        link = link.__cause__ if link.__cause__ is not None or link.__suppress_context__ else link.__context__
        if link is not None:
            parts.insert(0, between)
    return "".join(parts)


def _alone(error: BaseException, forms: dict[object, str]) -> str:
    """Return one error with its stack trace; arguments as of `_formatted`."""
    if getattr(error, "__notes__", None):
        return "".join(traceback.format_exception(error, chain=False))
    said = str(error)
    where = type(error), *((frame.tb_frame.f_code, frame.tb_lasti) for frame in _frames(error))
    before = forms.get(where)
    if before is None or not said:
        whole = "".join(traceback.format_exception(error, chain=False))
        if said and whole.endswith(f": {said}\n"):
            forms[where] = whole[: -len(said) - 1]
        return whole
    return f"{before}{said}\n"


def _frames(error: BaseException) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


def _extras(messages: Batch) -> list[dict[str, str]]:
    names = list(messages.extra)
    columns = zip(*(messages.extra[name].values for name in names), strict=True)
    return [
        {name: str(value) for name, value in zip(names, values, strict=True) if value is not None} for values in columns
    ]


def _histories(messages: Batch) -> list[DeliveryHistory] | None:
    """Return the history of each row; None where no row has one."""
    if messages.headers is None:
        return None
    found = dialects.histories(messages)
    return None if all(each == _NONE for each in found) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterWriter:
    """Makes the letters for one sink.

    Attributes:
        spec: the job's spec.
        capabilities: of the sink.
        configs: the job's options, redacted.
        reporter: returns what says why rows were given up.
        moved: the broker moves the messages itself: their bodies stay, unless the spec asks for others.
        rename_type: the sink's own type, which takes precedence over the owner's and the spec's.
        beat: called now and then: many letters take long to make.
    """

    spec: DeliverySpec
    capabilities: Capabilities
    configs: Mapping[str, str]
    reporter: Callable[[], Reporter]
    moved: bool = False
    rename_type: str | None = None
    beat: Callable[[], None] = lambda: None

    def letters(self, group: Group) -> Batch:
        """Return the letters of a group, one per row, each with its own identity."""
        pieces, reporter = [], self.reporter()
        for start in range(0, len(group), _PIECE):
            self.beat()
            piece = group.take(range(start, min(start + _PIECE, len(group))))
            pieces.append(self._letters(piece, reporter.contexts(piece)))
        return joined(pieces)

    def _letters(self, group: Group, contexts: Contexts) -> Batch:
        spec, prefix = self.spec, self.capabilities.cloudevents_prefix
        kept = self.capabilities.columns.keys() - self.capabilities.routes
        batch = replace(
            group.messages,
            destination=None,
            extra={name: column for name, column in group.messages.extra.items() if name in kept},
            identity=Column.of(_identities(group, contexts)),
        )
        if batch.headers is not None:
            batch = dialects.strip_all(batch)
        rename_type = self.rename_type or group.owner.rename_type or spec.dead_letter_type
        if spec.format is not None:
            batch = events.reformat_all(batch, spec.format, prefix)
        if spec.sink_context_headers is False:
            return _each(batch, lambda message: _plain(message, rename_type, wrapped=group.wrapped))
        own = self.capabilities.context_dialect
        asked: Sequence[str] | None = spec.dead_letter_dialects or None
        if asked is None and self.moved and events.is_structured(batch.row(0)):  # what is moved is one message
            asked = (own,)
        parts: list[Batch] = []
        order: list[int] = []
        for names, rows in dialects.chosen_all(asked, own, batch, wrapped=group.wrapped).items():
            part = contexts.take(rows) if len(rows) < len(batch) else contexts
            parts.append(
                dialects.attach_all(
                    batch.take(rows) if len(rows) < len(batch) else batch,
                    part.common,
                    part.varying,
                    dialect=names,
                    limits=self.capabilities.limits,
                    prefix=prefix,
                    include_message=bool(spec.sink_include_messages),
                    configs=self.configs if spec.sink_include_configs else None,
                    rename_type=rename_type,
                    wrapped=group.wrapped,
                    key=None if spec.letter_key is None else signing.key(spec.letter_key),
                )
            )
            order += rows
        letters = joined(parts)
        return letters if len(parts) == 1 else letters.take(sorted(range(len(order)), key=order.__getitem__))


def _plain(message: Message, rename_type: str | None, *, wrapped: bool) -> Message:
    """Return a letter without a context."""
    if wrapped:
        return dialects.wrap(message)
    return message if rename_type is None else dialects.renamed(message, rename_type)


def _each(batch: Batch, change: Callable[[Message], Message]) -> Batch:
    return Batch.of([change(message) for message in batch.rows()])


def _identities(group: Group, contexts: Contexts) -> list[str | None]:
    owner, messages = group.owner, group.messages
    if owner.context is None and owner.received is None:
        return list(identity.of_letters(messages, contexts.common, contexts.varying))
    given = messages.identity if owner.context is not None else None
    names = repeat(None) if given is None else given.values
    return [
        name or identity.of_letter(message, contexts.row(row), owner.received)
        for row, (message, name) in enumerate(zip(messages.rows(), names, strict=False))
    ]
