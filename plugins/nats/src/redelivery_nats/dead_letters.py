"""The dead letters role: messages of a stream are read by their sequence, without a consumer and without taking them.

A message that was delivered too often stays in its stream, and the server says so in an advisory, which the dead letter
stream stores: a letter that only points. Its message is read where the URL's own stream has it (decision 0064).
"""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any, Final

from redelivery.contract.broker import DeadLetters, Letter, LetterBatch, Wanted
from redelivery.contract.context import UNRESOLVED
from redelivery.contract.letters import batches
from redelivery.contract.message import Message
from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery.kit.errors import Code
from redelivery.kit.letters import given_up, undecodable
from redelivery.kit.plans import none_if_missing
from redelivery_nats import codec
from redelivery_nats.address import Address
from redelivery_nats.admin import MAX_DELIVERIES
from redelivery_nats.client.asking import AT_ONCE, Asking, is_missing

_TYPE: Final = "io.nats.jetstream.advisory.v1.max_deliver"
#: A range of sequences of a stream that was created at that time; a cursor, and a position, have one.
_SPLIT = re.compile(r"([0-9a-f]{1,16}):([0-9]{1,19})-([0-9]{1,19})")
_POINT = re.compile(r"([0-9a-f]{1,16}):([0-9]{1,19})")
#: Bytes of messages that may come at once, before they are base64: a server cuts off a client that 64 MiB wait for.
_BYTES_AT_ONCE: Final = 24 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored message.

    Attributes:
        sequence: its number in its stream.
        subject: what it was sent under.
        message: what was sent.
        fault: which part of it cannot be decoded.
        time_ms: when it was stored, milliseconds since the epoch.
    """

    sequence: int
    subject: str
    message: Message
    fault: str | None
    time_ms: int


@dataclass(frozen=True, slots=True)
class Death:
    """What an advisory says: the message of this sequence was delivered so often, to this consumer."""

    sequence: int
    consumer: str
    attempts: int | None

    @classmethod
    def of(cls, stored: Stored, source: Address | None) -> Death | str:
        """Read an advisory; return why it points to no message here. Anyone may have written it."""
        stream, _, consumer = stored.subject[len(MAX_DELIVERIES) + 1 :].partition(".")
        if source is None or stream != source.stream:
            return f"it is about the stream {stream[:100]!r}, which is not this dead letter stream's own"
        try:
            told = json.loads(stored.message.value or b"")
            sequence, count = told["stream_seq"], told.get("deliveries")
            valid = (told["type"], told["stream"], told["consumer"]) == (_TYPE, stream, consumer)
        except (ValueError, TypeError, LookupError, RecursionError):
            return "it is not an advisory of a server"
        if not valid or not _is_number(sequence) or not sequence:
            return "it is not an advisory of a server"
        return cls(sequence, consumer[:200], count if _is_number(count) else None)


class NatsDeadLetters(Asking, DeadLetters):
    """Reads a stream of letters. A position is the time when the stream was created, and the sequence."""

    def browse(self) -> Iterator[Letter]:
        self.check_open("browsing")
        return chain.from_iterable(batch.letters() for split in self.splits(Wanted()) for batch in self._read(split))

    def splits(self, wanted: Wanted) -> Sequence[str]:
        self.check_open("dividing")
        created, first, last, _ = self._bounds()
        if wanted.after is not None:
            first = max(first, self._point(wanted.after, created) + 1)
        if wanted.before is not None:
            last = min(last, self._point(wanted.before, created))
        if last < first:
            return []
        size = max(1, -(-(last - first + 1) // wanted.readers))
        return [f"{created}:{at}-{min(at + size - 1, last)}" for at in range(first, last + 1, size)]

    def read(self, split: str, wanted: Wanted) -> Iterator[LetterBatch]:  # noqa: ARG002 - whole letters are read
        self.check_open("reading")
        return self._read(split)

    def cursor(self, *, after: str | None = None, most: int | None = None) -> str:
        self.check_open("looking at")
        created, first, last, _ = self._bounds()
        if after is not None:
            first = max(first, self._point(after, created) + 1)
        if most is None:
            return f"{created}:{max(last, first - 1)}"
        # Removed letters leave gaps: count from the next one that exists.
        found = self._next(self._address, first) if first <= last else None
        return f"{created}:{max(last, first - 1) if found is None else min(last, found.sequence + most - 1)}"

    def remove(self, positions: Sequence[str]) -> int:
        self.check_open("removing from")
        created, *_ = self._bounds()
        matches = [_POINT.fullmatch(each) for each in dict.fromkeys(positions)]
        numbers = [int(each[2]) for each in matches if each is not None and each[1] == created and int(each[2])]
        self._remove_originals(sorted(numbers))
        return self._delete(self._address, numbers)

    def purge(self) -> int:
        self.check_open("purging")
        _, first, last, _ = self._bounds()
        if last < first:
            return 0
        self._remove_originals(range(first, last + 1))
        body = {"seq": last + 1}  # what comes now stays
        return int(self._api("purging", f"STREAM.PURGE.{self._address.stream}", body, safe=False)["purged"])

    # --- reading ---

    def _bounds(self) -> tuple[str, int, int, int]:
        """When the stream was created, the sequences of its first and last message, and the bytes of all."""
        found = self._api("looking at", f"STREAM.INFO.{self._address.stream}")
        created, state = _microseconds(found["created"]), found["state"]
        return f"{created:x}", max(1, int(state["first_seq"])), int(state["last_seq"]), int(state["bytes"])

    def _point(self, cursor: str, created: str) -> int:
        match = _POINT.fullmatch(cursor)
        if match is None:
            raise ConfigurationError(f"nats: {cursor!r} is not a cursor of {self._place}")
        self._check_created(match[1], created)
        return int(match[2])

    def _check_created(self, then: str, created: str) -> None:
        if then != created:
            text = "the stream has been created again since; begin anew"
            raise Fatal(f"nats: {self.doing('reading')}: {text}", code=Code.CONFLICT)

    def _read(self, split: str) -> Iterator[LetterBatch]:
        match = _SPLIT.fullmatch(split)
        if match is None:
            raise ConfigurationError(f"nats: {split!r} is not a split of {self._place}")
        return batches(self._letters(match[1], int(match[2]), int(match[3])))

    def _letters(self, created: str, first: int, last: int) -> Iterator[Letter]:
        then, *_, size = self._bounds()
        self._check_created(created, then)
        at, few = first, self._messages_at_once()
        most = AT_ONCE if size <= _BYTES_AT_ONCE else few
        while at <= last:
            numbers = range(at, min(at + most, last + 1))
            found = self._existing(self._address, numbers)
            for start in range(0, len(found), few):  # a letter that points may have a large message
                yield from self._as_letters(created, found[start : start + few])
            at = numbers.stop
            if not found and at <= last:  # a gap: look where it ends
                nearest = self._next(self._address, at)
                at = last + 1 if nearest is None else nearest.sequence

    def _as_letters(self, created: str, found: Sequence[Stored]) -> Iterator[Letter]:
        deaths, originals = self._deaths(found)
        for each in found:
            position = f"{created}:{each.sequence}"
            if each.sequence in deaths:
                yield self._pointed(position, each, deaths[each.sequence], originals.get(each.sequence))
            else:
                context = None if each.fault is None else undecodable("nats", each.fault)
                message = _under(each, self._address)
                yield Letter(position=position, message=message, context=context, dead_lettered_ms=each.time_ms)

    def _pointed(self, position: str, stored: Stored, death: Death | str, original: Stored | None) -> Letter:
        """Return the letter of an advisory: its message as it was sent, or why that cannot be read."""
        source = self._address.source
        reason = "the server gave it up after its last delivery"
        more: dict[str, Any] = {"last_failure_ms": stored.time_ms}
        if isinstance(death, Death) and source is not None:
            reason = (
                f"{death.attempts or 'too many'} deliveries to the consumer {death.consumer!r} were not acknowledged"
            )
            more |= {"attempts": death.attempts, "subscriber": death.consumer}
            more |= {"source_topic": source.stream, "source_offset": death.sequence}
        context = given_up("nats", Code.DELIVERY_LIMIT, reason, **more)
        if isinstance(death, str) or source is None or original is None:
            word, why = ("foreign", death) if isinstance(death, str) else ("gone", "it is not in its stream any more")
            text = f"{reason}. The message cannot be read, and so it cannot be redriven: {why}"
            context = replace(context, kind=UNRESOLVED, native_code=word, reason=text)
            return Letter(position=position, message=stored.message, context=context, dead_lettered_ms=stored.time_ms)
        message = _under(original, source)
        context = replace(context, target=message.destination)
        if original.fault is not None:
            context = undecodable("nats", original.fault)
        return Letter(position=position, message=message, context=context, dead_lettered_ms=stored.time_ms)

    def _deaths(self, letters: Sequence[Stored]) -> tuple[dict[int, Death | str], dict[int, Stored]]:
        """Return what the advisories among letters say, and the messages that they point to, each by its letter."""
        source = self._address.source
        deaths = {each.sequence: Death.of(each, source) for each in letters if _is_advisory(each)}
        wanted = {at: death.sequence for at, death in deaths.items() if isinstance(death, Death)}
        if source is None or not wanted:
            return deaths, {}
        found = {each.sequence: each for each in self._existing(source, list(dict.fromkeys(wanted.values())))}
        # A stream that was created again counts from 1: a message that came after the advisory is another one.
        times = {each.sequence: each.time_ms for each in letters}
        return deaths, {
            at: found[number] for at, number in wanted.items() if number in found and found[number].time_ms <= times[at]
        }

    def _existing(self, address: Address, numbers: Sequence[int]) -> list[Stored]:
        """Return those messages of these sequences, not more than `_messages_at_once`, that exist."""
        asked = [(f"STREAM.MSG.GET.{address.stream}", {"seq": each}) for each in numbers]
        found = (self._stored(each, address) for each in self._api_all("reading", asked))
        return [each for each in found if each is not None]

    def _next(self, address: Address, first: int, subject: str = ">") -> Stored | None:
        asked = [(f"STREAM.MSG.GET.{address.stream}", {"seq": first, "next_by_subj": subject})]
        return self._stored(self._api_all("reading", asked)[0], address)

    def _stored(self, answer: dict[str, Any] | BrokerError, address: Address) -> Stored | None:
        if isinstance(answer, BrokerError):
            other = address != self._address and answer.code is Code.NO_SUCH_DESTINATION
            if is_missing(answer) or other:
                return None
            raise answer
        found = answer["message"]
        block, payload = (base64.b64decode(found.get(name) or "") for name in ("hdrs", "data"))
        message, fault = codec.decode(block, payload)
        return Stored(int(found["seq"]), str(found["subject"]), message, fault, _microseconds(found["time"]) // 1000)

    def _messages_at_once(self) -> int:
        """Return how many stored messages may be asked for at once: each may be as large as the server accepts."""
        most = self._settings.max_payload
        return max(1, min(AT_ONCE, _BYTES_AT_ONCE // int(self._connected().server.get("max_payload") or most)))

    # --- removing ---

    def _remove_originals(self, numbers: Sequence[int]) -> None:
        """Remove the messages that the advisories among these letters point to: in a work queue they wait for nobody.

        Args:
            numbers: sequences of letters, rising.
        """
        source, most = self._address.source, self._messages_at_once()
        if source is None:
            return
        advisories = f"{MAX_DELIVERIES}.{source.stream}.*"
        while numbers and (found := self._next(self._address, numbers[0], advisories)) is not None:
            numbers = numbers[bisect_left(numbers, found.sequence) :]
            info = none_if_missing(lambda: self._api("removing from", f"STREAM.INFO.{source.stream}"))
            if info is None or info["config"].get("retention") != "workqueue":
                return  # other consumers may still want it
            _, originals = self._deaths(self._existing(self._address, numbers[:most]))
            self._delete(source, [each.sequence for each in originals.values()])
            numbers = numbers[most:]

    def _delete(self, address: Address, numbers: Sequence[int]) -> int:
        what = f"STREAM.MSG.DELETE.{address.stream}"
        count = 0
        for each in self._api_all(
            "removing from", [(what, {"seq": at, "no_erase": True}) for at in numbers], safe=False
        ):
            if isinstance(each, BrokerError):
                if not is_missing(each):
                    raise each
            else:
                count += 1
        return count


def _is_advisory(stored: Stored) -> bool:
    return stored.subject.startswith(f"{MAX_DELIVERIES}.")


def _under(stored: Stored, address: Address) -> Message:
    """Return a message with the subject that it was sent under, where that is its own."""
    own = stored.subject != address.subject
    return replace(stored.message, destination=stored.subject) if own else stored.message


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _microseconds(text: str) -> int:
    """Return microseconds since the epoch of a time as the server writes it: `2026-11-23T04:34:48.66236674Z`."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
