"""Operations on letters: as which messages they are sent, and why some stay.

Letters are sent back to their destination (redrive), or on to a sink (forward). Letters of one cause are alike: what is
sent of them is computed by column (`sendable`), and one by one only where a letter differs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from redelivery.codes import Code
from redelivery.contract.broker import Capabilities, Letter
from redelivery.contract.context import GIVEN_UP, UNRESOLVED, ErrorContext
from redelivery.contract.letters import LetterBatch
from redelivery.contract.message import Batch, Column, Message
from redelivery.deadletters.trust import Targets, context_of
from redelivery.formats import dialects, events, identity
from redelivery.formats.dialects import again

#: A letter that was sent back this often is sent again only on request.
HOP_LIMIT: Final = 5
#: Separates an id from the number of its hop.
HOP_MARK: Final = "~"


class Stays(Exception):
    """A letter cannot be sent as it is meant to be sent; its text says why."""


@dataclass(frozen=True, slots=True)
class LetterOperation:
    """An operation on letters: redrive or forward.

    Attributes:
        name: for messages.
        prepare: returns the message of a letter with this whole context, for a destination of these capabilities, or
            raises `Stays`.
        target: returns the letter's own target; None where it goes to the destination itself.
        why_left: returns why a letter is not sent to a destination of these capabilities; None where it is sent.
        hop_limit: letters that were sent back fewer times may go by column; None: each letter is looked at.
        new_ids: every message gets an id of its hop.
        form: tells apart operations that send different messages for one letter: of edits, `Patch.form`.
        noted: the form of a letter is noted before it is sent, so that it is never sent in two.
        unedited: what `prepare` would return without the edit; None: nothing is edited.
    """

    name: str
    prepare: Callable[[Letter, Capabilities, ErrorContext], Message]
    target: Callable[[Letter, Capabilities, ErrorContext], str | None]
    why_left: Callable[[Letter, Capabilities, ErrorContext], str | None]
    hop_limit: int | None = None
    new_ids: bool = False
    form: str = ""
    noted: bool = False
    unedited: Callable[[Letter, Capabilities, ErrorContext], Message] | None = None


class Edit(Protocol):
    """An edit of letters: `deadletters.patching.Patch`."""

    @property
    def form(self) -> str:
        """What tells this edit from any other."""

    @property
    def destination(self) -> str | None:
        """Where letters go, if the edit says so."""

    def apply(self, message: Message) -> Message:
        """Return the edited message. Raises Stays."""


@dataclass(slots=True)
class Sendable:
    """Letters in the form in which they are sent.

    Attributes:
        going: indices of the letters that are sent, in their order.
        messages: their messages, as many as `going`; None where no letter is sent.
        left: why each of the others stays.
        targets: the targets of those that go elsewhere than to the destination.
    """

    going: Sequence[int]
    messages: Batch | None
    left: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)


def sendable(operation: LetterOperation, letters: LetterBatch, there: Capabilities) -> Sendable:
    """Return which letters an operation sends, and as what."""
    stored = letters.messages
    plain: Sequence[again.Again | None] = [None] * len(letters)
    if operation.hop_limit is not None and not there.routes & stored.extra.keys():
        plain = _plain(letters, operation.hop_limit, there)
    found = Sendable([], None)
    single: dict[int, Message] = {}
    going: list[int] = []
    for index, each in enumerate(plain):
        if each is None:
            letter = letters.letter(index)
            context = context_of(letter)
            why = operation.why_left(letter, there, context)
            if why is not None:
                found.left.append(why)
                continue
            try:
                single[index] = operation.prepare(letter, there, context)
            except Stays as stays:
                found.left.append(str(stays))
                continue
            target = operation.target(letter, there, context)
            if target:
                found.targets.append(target)
        going.append(index)
    found.going = going
    if not going:
        return found
    if len(single) == len(going):
        found.messages = Batch.of([single[index] for index in going])
    else:
        sent = _sent_plain(stored, plain, there, new_ids=operation.new_ids)
        found.messages = _patched(sent, single) if single else sent
        if len(going) < len(letters):
            found.messages = found.messages.take(going)
    return found


def mendable(
    letters: LetterBatch,
    rows: Iterable[int],
    there: Capabilities,
    targets: Targets,
    hop_limit: int,
    *,
    elsewhere: bool = False,
) -> Iterator[tuple[int, str | None]]:
    """Return why each of these rows is not mended and sent back, None where it is; arguments as of `why_left`."""
    stored = letters.messages
    plain: Sequence[again.Again | None] = again.plain(stored)
    routed = there.routes & stored.extra.keys() or any(stored.destination.values if stored.destination else ())
    for index in rows:
        each = plain[index]
        if each is not None and each.hops < hop_limit and not routed and index not in letters.contexts:
            yield index, None
        else:
            letter = letters.letter(index)
            yield index, why_left(letter, there, targets, hop_limit, mended=True, elsewhere=elsewhere)


def _plain(letters: LetterBatch, hop_limit: int, there: Capabilities) -> list[again.Again | None]:
    """Return what letters are sent back with, for those that need not be looked at one by one.

    A letter without an id gets one from its context, but not where no id arrives.
    """
    named = bool(there.ids or there.deduplicate)
    stored = letters.messages
    plain = again.plain(stored)
    ids = [None] * len(letters) if stored.id is None else stored.id.values
    destinations = None if stored.destination is None else stored.destination.values
    for index, each in enumerate(plain):
        if (
            each is not None
            and (
                each.hops >= hop_limit
                or (named and ids[index] is None)
                or (not each.unsent and is_marked(ids[index] or "", each.hops + 1))
                or (destinations and destinations[index] is not None)
            )
        ) or not _goes_plain(letters.contexts.get(index)):
            plain[index] = None
    return plain


def _goes_plain(native: ErrorContext | None) -> bool:
    """Whether nothing of what only the broker knows of a letter goes into the message that is sent."""
    return native is None or not (
        native.target
        or native.extra
        or native.maybe_delivered
        or native.kind == UNRESOLVED
        or native.code is Code.UNDECODABLE
    )


def _sent_plain(stored: Batch, plain: Sequence[again.Again | None], there: Capabilities, *, new_ids: bool) -> Batch:
    """Return plain letters in the form in which they are sent; other rows are to be patched, or left out."""
    ids = [None] * len(stored) if stored.id is None else stored.id.values
    names = [
        None
        if each is None or name is None
        else next_id(name, each.hops + 1, named=each.hops, unsent=each.unsent or new_ids)
        for name, each in zip(ids, plain, strict=True)
    ]
    sent = replace(
        stored,
        id=Column.of(names),
        headers=Column.of([() if each is None else each.headers for each in plain]),
        destination=None,
        extra={name: column for name, column in stored.extra.items() if name in there.columns},
        identity=None,
    )
    kept = [name is not None and name == old for name, old in zip(names, ids, strict=True)]
    if there.deduplicate or not any(kept):
        return replace(sent, identity=Column(len(sent), lambda: identity.of_redriven_all(sent)))

    def identities() -> list[str | None]:
        every = identity.of_redriven_all(sent)
        return [None if same else each for same, each in zip(kept, every, strict=True)]

    return replace(sent, identity=Column(len(sent), identities))


def _patched(sent: Batch, single: Mapping[int, Message]) -> Batch:
    """Return the batch with these rows replaced."""
    length = len(sent)

    def patched(column: Column[Any] | None, name: str) -> Column[Any]:
        def load() -> list[Any]:
            values = [None] * length if column is None else list(column.values)
            for index, message in single.items():
                values[index] = getattr(message, name)
            return values

        return Column(length, load)

    def own(name: str) -> Column[Any]:
        values = list(sent.extra[name].values) if name in sent.extra else [None] * length
        for index, message in single.items():
            values[index] = message.extra.get(name)
        return Column.of(values)

    names = {*sent.extra, *(name for message in single.values() for name in message.extra)}
    return replace(
        sent,
        value=patched(sent.value, "value"),
        key=patched(sent.key, "key"),
        headers=patched(sent.headers, "headers"),
        id=patched(sent.id, "id"),
        destination=patched(sent.destination, "destination"),
        timestamp_ms=patched(sent.timestamp_ms, "timestamp_ms"),
        extra={name: own(name) for name in sorted(names)},
        identity=patched(sent.identity, "identity"),
        native=patched(sent.native, "native"),
    )


def sent_back(
    letter: Letter,
    there: Capabilities,
    context: ErrorContext | None = None,
    *,
    targeted: bool = True,
    new_ids: bool = False,
) -> Message:
    """Return the message that a redrive sends for a letter: without our context, one hop further, to its own target.

    Its id is that of `next_id`. Where the message may have been delivered, it is the one under which it was sent.

    Args:
        letter: as stored.
        there: the destination's capabilities; values of its columns are restored.
        context: `context_of` the letter, where the caller has it.
        targeted: its target was allowed (`Targets`); otherwise it goes to the destination itself.
        new_ids: it gets an id of its hop, whichever application wrote it.
    """
    context = context or context_of(letter)
    columns = {name: kind for name, kind in there.columns.items() if targeted or name not in there.routes}
    message = dialects.redriven(letter.message)
    hop = dialects.history(message).hops
    name, unsent = message.id, new_ids or dialects.unsent(letter.message.headers)
    named = dialects.named(letter.message.headers)
    if context.maybe_delivered:
        name = name or context.message_id  # as it was sent: a consumer that has it already can tell
    elif name is None and context.message_id is not None:
        # Not the letter's own: another letter may have it, and must not be taken for the same message.
        name, named = f"{context.message_id}{HOP_MARK}{letter.position}" if unsent else context.message_id, 0
    extra = _restored(context.extra, columns)
    sent = replace(
        message,
        id=name if name is None or context.maybe_delivered else next_id(name, hop, named=named, unsent=unsent),
        destination=message.destination or context.target if targeted else None,
        extra={**extra, **{name: value for name, value in message.extra.items() if name in columns}},
    )
    if sent.id is not None and sent.id == name and is_marked(name, hop):
        sent = dialects.with_own_id(sent)
    if context.maybe_delivered:
        return replace(sent, identity=identity.of_unchanged(sent, context))
    if sent.id == name and not there.deduplicate:
        return replace(sent, identity=None)
    return replace(sent, identity=identity.of_redriven(sent))


def _restored(texts: Mapping[str, str], columns: Mapping[str, type]) -> dict[str, Any]:
    """Return the values of the broker's own columns, from their texts in a context."""
    extra: dict[str, Any] = {}
    for name, text in texts.items():
        if name in columns and columns[name] is not bytes:
            with contextlib.suppress(ValueError):  # another program wrote it: the message is sent without it
                extra[name] = columns[name](text)
    return extra


def next_id(name: str, hop: int, *, named: int, unsent: bool) -> str:
    """Return the id under which a letter is sent back.

    A message of ours gets `<id>~<hop>`, so that no reader takes it for the one that failed. A message that was stored
    before it died keeps its id: its application, or another one, knows it by that. A broker that de-duplicates
    recognises both by their `identity`, which differs at each hop.

    Args:
        name: its id.
        hop: how often it was sent back, this time included.
        named: as of `dialects.named`.
        unsent: as of `dialects.unsent`.
    """
    original = original_id(name, named)
    return f"{original}{HOP_MARK}{hop}" if unsent or original != name else name


def original_id(name: str, hop: int) -> str:
    """Return an id without the mark of its last hop."""
    return name.removesuffix(f"{HOP_MARK}{hop}") if hop > 0 else name


def is_marked(name: str, hop: int) -> bool:
    """Whether an id ends as one that this hop was given; its message must say if that is not so."""
    return name.endswith(f"{HOP_MARK}{hop}")


def why_left(
    letter: Letter,
    there: Capabilities,
    targets: Targets,
    hop_limit: int,
    *,
    mended: bool = False,
    context: ErrorContext | None = None,
    elsewhere: bool = False,
) -> str | None:
    """Return why a letter is not sent back; None where it is sent.

    Args:
        letter: as stored.
        there: the destination's capabilities.
        targets: letters with another target are sent only where that is allowed.
        hop_limit: letters that were sent back so often stay.
        mended: the letter is mended before it is sent: also one that stands for a row.
        context: `context_of` the letter, where the caller has it.
        elsewhere: the destination is another plugin's, which knows nothing of the letter's native part.
    """
    if (why := _incomplete(letter, elsewhere=elsewhere)) is not None:
        return why
    refused = targets.refused(letter, there, context)
    if refused is not None:
        return f"its target {refused!r} is not allowed (--allow-targets)"
    if dialects.history(letter.message).hops >= hop_limit:
        return f"it was sent back {hop_limit} times already"
    if not mended and _is_undeliverable(letter.message):
        return "its row never became a message: mend it and write it again"
    return None


def _incomplete(letter: Letter, *, elsewhere: bool) -> str | None:
    """Return why a letter's message would arrive altered, as its plugin reports; None where it would not."""
    if letter.context is None:
        return None
    if letter.context.kind == UNRESOLVED:
        why = letter.context.native_code or "no reason is given"
        return f"it only points to its message, which cannot be read ({why})"
    if letter.context.code is Code.UNDECODABLE and (elsewhere or letter.message.native is None):
        return f"it cannot be read whole, so it would arrive altered ({letter.context.reason})"
    return None


def _is_undeliverable(message: Message) -> bool:
    """Whether a message stands for a row. Every event has a header whose name ends so."""
    if not any(name.lower().endswith("type") for name, _ in message.headers):
        return False
    event = events.event_in(dialects.strip(message))
    return event is not None and event.get_type() == events.UNDELIVERABLE


def why_not_forwarded(letter: Letter, _there: Capabilities, _context: ErrorContext) -> str | None:
    """Return why a letter is not forwarded; None where it is forwarded."""
    is_ours = dialects.strip(letter.message).headers != letter.message.headers
    given_up = letter.context is not None and letter.context.kind in GIVEN_UP
    if letter.context is None or is_ours or (not given_up and dialects.read(letter.message) is not None):
        return "it was not put there by the broker itself"
    return _incomplete(letter, elsewhere=True)


def redrive_operation(
    targets: Targets, hop_limit: int, *, new_ids: bool = False, elsewhere: bool = False, patch: Edit | None = None
) -> LetterOperation:
    """Return the redrive operation; arguments as of `why_left` and `LetterOperation`; `patch`: edits each letter."""

    def why(letter: Letter, there: Capabilities, context: ErrorContext) -> str | None:
        return why_left(letter, there, targets, hop_limit, context=context, elsewhere=elsewhere)

    def back(letter: Letter, there: Capabilities, context: ErrorContext) -> Message:
        return sent_back(letter, there, context, targeted=not targets.none, new_ids=new_ids)

    if patch is None:
        return LetterOperation("redrive", back, targets.of, why, hop_limit, new_ids, noted=True)
    edit, goes_to = patch, patch.destination

    def edited(letter: Letter, there: Capabilities, context: ErrorContext) -> Message:
        return sent_edited(letter, there, context, edit.apply, targeted=not targets.none, new_ids=new_ids)

    def target(letter: Letter, there: Capabilities, context: ErrorContext) -> str | None:
        return goes_to or targets.of(letter, there, context)

    return LetterOperation("redrive", edited, target, why, None, new_ids, form=edit.form, noted=True, unedited=back)


def sent_edited(
    letter: Letter,
    there: Capabilities,
    context: ErrorContext,
    edit: Callable[[Message], Message],
    *,
    targeted: bool,
    new_ids: bool,
) -> Message:
    """Return the message that a redrive sends for a letter that it edits; arguments as of `sent_back`.

    It is another message than the one that failed. It never goes under the identity of the first one, by which a
    destination that has that one would drop it; and an event of any application gets the id of its hop. Raises Stays.
    """
    renamed = new_ids or events.event_in(dialects.strip(letter.message)) is not None
    fresh = replace(context, maybe_delivered=False)
    sent = edit(sent_back(letter, there, fresh, targeted=targeted, new_ids=renamed))
    return sent if sent.identity is None else replace(sent, identity=identity.of_redriven(sent))


#: Messages that the broker itself gave up are sent on unchanged; each sink's sender writes their context in its form.
FORWARD: Final = LetterOperation(
    "forward",
    lambda letter, _there, _context: replace(letter.message, identity=identity.of_forwarded(letter)),
    lambda _letter, _there, _context: None,
    why_not_forwarded,
)
