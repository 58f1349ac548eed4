"""Makes a letter of a message: renders the context in one dialect or several, and cuts it until it fits.

Parts are cut in this order: the record, the settings, the stack trace, the exception text, the dialects after the
first, all optional fields, the whole context except the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from redelivery.contract.broker import Limits
from redelivery.contract.context import GIVEN_UP, ErrorContext
from redelivery.contract.message import Header, Headers, Message
from redelivery.formats.cloudevents import event_in, is_structured, prefix_in
from redelivery.formats.dialects import _body, _marker, json_context
from redelivery.formats.dialects._fields import BOOKKEEPING, shortened, without
from redelivery.formats.dialects._marker import Marker, Replaced

#: The header for fields that a dialect has no name for, and its name where a user's own header has the first.
CONTEXT: Final = ("redelivery-context", "redelivery-context-2")

#: The shortest text that is worth keeping, in bytes, and how finely its room is searched for.
_LEAST: Final = 64
_SEARCHES: Final = 10
_MOST: Final = 2**31 - 1
#: Kinds of what a broker, or another application, moved to the dead letters.
_BURIED: Final = frozenset({*GIVEN_UP, "rejected", "full", "terminated"})


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect.

    Attributes:
        name: as capabilities and options spell it.
        gives: every header or extension attribute that it may write, and the fields that it may give.
        write: returns the pairs for a context, the most important first.
        read: returns the fields of such pairs.
        extensions: its names are CloudEvents extension attributes: they go into the body of a structured event, and
            get the broker's prefix elsewhere.
        whole: the JSON header holds the whole context, not only what the dialect has no name for.
    """

    name: str
    gives: Mapping[str, frozenset[str]]
    write: Callable[[ErrorContext], list[tuple[str, str | int]]]
    read: Callable[[Mapping[str, str]], dict[str, Any]]
    extensions: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How letters are written: the same for all of a batch. See `attach`.

    Attributes:
        dialects: the dialects to write; the first is the last to be cut.
        limits: the broker's.
        prefix: of CloudEvents headers at the broker; None where the broker has no prefix.
        include_message, configs: see `json_context.document`.
        rename_type: the type that an event gets.
        wrapped: as an event that stands for the message.
        key: signs the letter.
    """

    dialects: tuple[Dialect, ...]
    limits: Limits
    prefix: str | None
    include_message: bool = False
    configs: Mapping[str, str] | None = None
    rename_type: str | None = None
    wrapped: bool = False
    key: bytes | None = None


def combined(dialects: Sequence[Dialect], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields that several dialects give; the first dialect that gives a field counts.

    Args:
        dialects: each reads its own names.
        texts: by name, without a prefix.
    """
    fields: dict[str, Any] = {}
    for dialect in reversed(dialects):
        fields |= dialect.read({name: text for name, text in texts.items() if name in dialect.gives})
    return fields


def in_the_way(headers: Headers, style: Style) -> list[int]:
    """Return the user's headers that have the name of one that may be written, where a message has each name once."""
    if style.limits.repeated_headers:
        return []
    ours = {name for dialect in style.dialects if not dialect.extensions for name in dialect.gives}
    return [at for at, (name, _) in enumerate(headers) if name in ours]


class Letter:
    """Renders contexts into one message.

    Headers are appended, also where the user has one of the same name: readers of Connect's headers take the last. Only
    an event's attributes, which do not repeat, are left out where they exist.

    Args:
        message: without any context or marker of ours.
        history: its marker, with its history.
        style: how it is written.
        sign: returns the signature of a letter with this marker; None: the letter is not signed.
        replacing: where the broker has each name once, the user's headers of our names are kept in the marker; False:
            ours are left out.
    """

    def __init__(
        self,
        message: Message,
        history: Marker,
        style: Style,
        sign: Callable[[Message, Marker], str] | None,
        *,
        replacing: bool = True,
    ) -> None:
        self._sign = sign
        away = in_the_way(message.headers, style) if replacing and _marker.free_name(message.headers) else []
        self._replaced = tuple(Replaced.of(at, message.headers[at]) for at in away)
        if away:
            kept = tuple(each for at, each in enumerate(message.headers) if at not in away)
            message = replace(message, headers=kept)
        self._appending = style.limits.repeated_headers
        self._message = message
        self._lives = history
        self._dialects: Sequence[Dialect] = style.dialects
        self._limits = style.limits
        self._include_message = style.include_message
        self._configs = style.configs
        self._taken = {name.lower() for name, _ in message.headers}
        self._received = False
        self._in_body = is_structured(message) and event_in(message) is not None
        self._prefix = prefix_in(message) or style.prefix or ""

    def whole(self, context: ErrorContext) -> Message | None:
        """Return the letter with the whole context, whether it fits or not; None where headers have no room for it."""
        self._received = context.subscriber is not None or context.kind in _BURIED
        return self._render(context) if self._room() > 1 else None

    def fit(self, context: ErrorContext) -> Message | None:
        """Return the letter with as much of the context as the limits allow; None where not even a marker fits."""
        return next((letter for letter in self._smaller_and_smaller(context) if self._fits(letter)), None)

    def _smaller_and_smaller(self, context: ErrorContext) -> Iterator[Message]:
        letter = self.whole(context)
        if letter is not None:
            yield letter
            if self._include_message:
                self._include_message = False
                context = replace(context, truncated=True)
                yield self._render(context)
            if self._configs:
                self._configs = None
                context = replace(context, truncated=True)
                yield self._render(context)
            for field in ("stacktrace", "reason"):
                yield from self._cut(context, field)
                least = 0 if field == "stacktrace" else _LEAST
                context = shortened(context, **{field: least})
            if len(self._dialects) > 1:
                self._dialects = self._dialects[:1]
                context = replace(context, truncated=True)
                yield self._render(context)
            yield self._render(shortened(context, text=_LEAST * 4))
            context = ErrorContext(
                reason=context.reason,
                kind=context.kind,
                code=context.code,
                native_code=context.native_code,
                exception=context.exception,
                stage=context.stage,
                attempts=context.attempts,
                attempts_total=context.attempts_total,
                hops=context.hops,
                maybe_delivered=context.maybe_delivered,
                run=context.run,  # by which the letters of a write are found
                destination=context.destination,  # distinguishes letters of a sink that others share
                target=context.target,  # without it a redrive would send it elsewhere
                truncated=True,
            )
            context = shortened(context, text=_LEAST)
            yield self._render(context)
            context = replace(context, destination=None)
            yield self._render(context)
            yield self._render(context, named=0)
            yield self._render(context, rest=False)
        yield self._with((), replace(self._marker(context), truncated=True))
        retyped, wrapped = self._lives.retyped, self._lives.wrapped
        last = Marker(truncated=True, retyped=retyped, wrapped=wrapped, received=self._received)
        yield self._with((), replace(last, replaced=self._replaced))

    def _cut(self, context: ErrorContext, field: str) -> Iterator[Message]:
        """Return the letter with as much of one text as fits, found by halving."""
        whole = len((getattr(context, field) or "").encode())
        low, high, best = _LEAST, whole, None
        for _ in range(_SEARCHES):
            if low >= high:
                break
            middle = (low + high + 1) // 2
            letter = self._render(shortened(context, **{field: middle}))
            if self._fits(letter):
                low, best = middle, letter
            else:
                high = middle - 1
        if best is not None:
            yield best

    def _render(self, context: ErrorContext, *, named: int | None = None, rest: bool = True) -> Message:
        """Return the letter with this context: at most `named` fields by name, and the `rest` in the JSON header."""
        marker = self._marker(context)
        message = self._message
        headers: list[Header] = []
        texts: dict[str, str] = {}
        there = _body.attributes(message.value) if self._in_body else {}
        inside: dict[str, str | int] = {}
        for dialect in self._dialects:
            prefix = self._prefix if dialect.extensions else ""
            for name, value in dialect.write(context)[:named]:
                if dialect.extensions and self._in_body:
                    if name not in there:
                        inside[name] = value
                        texts[name] = str(value)
                elif (
                    (self._appending and not dialect.extensions) or (prefix + name).lower() not in self._taken
                ) and len(headers) < self._room() - 2:
                    headers.append((prefix + name, str(value).encode()))
                    texts[name] = str(value)
        if inside:
            body, inserted = _body.insert(message.value or b"", inside)
            message = replace(message, value=body)
            marker = replace(marker, attributes=tuple(inside), inserted=inserted)
        extra = self._json(context, texts, marker) if rest else None
        free = next((each for each in CONTEXT if each not in self._taken), None)
        if extra and free:
            headers.insert(0, (free, json_context.dump(extra)))
        elif extra:
            marker = replace(marker, truncated=True)
        return self._with(headers, replace(marker, headers=tuple(name for name, _ in headers)), message)

    def _json(self, context: ErrorContext, texts: Mapping[str, str], marker: Marker) -> dict[str, Any] | None:
        kept = {name: getattr(marker, name) for name in BOOKKEEPING}
        asked: dict[str, Any] = {"include_message": self._include_message, "configs": self._configs}
        if any(dialect.whole for dialect in self._dialects):
            fields = without(context, {}) | without(context, combined(self._dialects, texts) | kept)
            return json_context.document(context, fields, self._message, **asked)
        fields = without(context, combined(self._dialects, texts) | kept)
        form = {json_context.OURS: fields} if fields else {}
        if any(asked.values()):
            form = {**json_context.included(context, self._message, **asked), **form}
        return form or None

    def _marker(self, context: ErrorContext) -> Marker:
        total = context.attempts_total
        if total is None:
            total = self._lives.attempts_total + (context.attempts or 0)
        return Marker(
            dialect=",".join(dialect.name for dialect in self._dialects),
            attempts_total=min(max(total, 0), _MOST),
            hops=min(max(context.hops, self._lives.hops), _MOST),
            truncated=context.truncated,
            maybe_delivered=context.maybe_delivered,
            retyped=self._lives.retyped,
            wrapped=self._lives.wrapped,
            received=self._received,
            own_id=self._lives.own_id,
            replaced=self._replaced,
        )

    def _with(
        self, headers: list[Header] | tuple[Header, ...], marker: Marker, message: Message | None = None
    ) -> Message:
        message = message or self._message
        name = _marker.free_name(message.headers)
        if name is None:
            return message
        letter = replace(message, headers=(*message.headers, *headers))
        if self._sign is not None:
            marker = replace(marker, mac=self._sign(letter, marker))
        return replace(letter, headers=(*letter.headers, (name, marker.dump())))

    def _room(self) -> int:
        """Return how many headers may be added."""
        most = self._limits.header_count
        return 1000 if most is None else most - len(self._message.headers)

    def _fits(self, letter: Message) -> bool:
        limits = self._limits
        ours = letter.headers[len(self._message.headers) :]
        in_headers = sum(len(name.encode("utf-8", "replace")) + len(value or b"") for name, value in letter.headers)
        in_all = in_headers + len(letter.value or b"") + len(letter.key or b"")
        largest = max((len(value or b"") for _, value in ours), default=0)
        sizes = (
            (len(letter.headers), limits.header_count),
            (in_headers, limits.headers_bytes),
            (largest, limits.header_value_bytes),
            (in_all, limits.message_bytes),
        )
        return bool(ours) and all(most is None or size <= most for size, most in sizes)
