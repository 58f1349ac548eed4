"""Operations on a letter: as which message it is sent, and why it stays.

A letter is sent back to its destination (redrive), or on to a sink (forward).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from redelivery.contract.broker import Capabilities, Letter
from redelivery.contract.message import Message
from redelivery.deadletters.trust import Targets, context_of
from redelivery.formats import dialects, events, identity

#: A letter that was sent back this often is sent again only on request.
HOP_LIMIT: Final = 5
#: Separates an id from the number of its hop.
HOP_MARK: Final = "~"


@dataclass(frozen=True, slots=True)
class LetterOperation:
    """An operation on letters: redrive or forward.

    Attributes:
        name: for messages.
        prepare: returns the message of a letter, for a destination of these capabilities.
        target: returns the letter's own target; None where it goes to the destination itself.
        why_left: returns why a letter is not sent to a destination of these capabilities; None where it is sent.
    """

    name: str
    prepare: Callable[[Letter, Capabilities], Message]
    target: Callable[[Letter, Capabilities], str | None]
    why_left: Callable[[Letter, Capabilities], str | None]


def sent_back(letter: Letter, there: Capabilities, *, targeted: bool = True) -> Message:
    """Return the message of a letter as it is sent again: without our context, one hop further, to its own target.

    Its id is `<id>~<hop>`, so that no broker takes it for the message that died. Where the message may have been
    delivered, the id is the one under which it was sent.

    Args:
        letter: as stored.
        there: the destination's capabilities; values of its columns are restored.
        targeted: its target was allowed (`Targets`); otherwise it goes to the destination itself.
    """
    context = context_of(letter)
    columns = {name: kind for name, kind in there.columns.items() if targeted or name not in there.routes}
    message = dialects.redriven(letter.message)
    hop = dialects.history(message).hops
    name = message.id
    if context.maybe_delivered:
        name = name or context.message_id  # as it was sent: a consumer that has it already can tell
    elif name is None and context.message_id is not None:
        # Not the letter's own: another letter may have it, and must not be taken for the same message.
        name = f"{context.message_id}{HOP_MARK}{letter.position}"
    extra = _restored(context.extra, columns)
    sent = replace(
        message,
        id=name if name is None or context.maybe_delivered else f"{original_id(name, hop - 1)}{HOP_MARK}{hop}",
        destination=message.destination or context.target if targeted else None,
        extra={**extra, **{name: value for name, value in message.extra.items() if name in columns}},
    )
    again = context.maybe_delivered
    return replace(sent, identity=identity.of_unchanged(sent, context) if again else identity.of_redriven(sent))


def _restored(texts: Mapping[str, str], columns: Mapping[str, type]) -> dict[str, Any]:
    """Return the values of the broker's own columns, from their texts in a context."""
    extra: dict[str, Any] = {}
    for name, text in texts.items():
        if name in columns and columns[name] is not bytes:
            with contextlib.suppress(ValueError):  # another program wrote it: the message is sent without it
                extra[name] = columns[name](text)
    return extra


def original_id(name: str, hop: int) -> str:
    """Return an id without the mark of its last hop."""
    return name.removesuffix(f"{HOP_MARK}{hop}") if hop > 0 else name


def why_left(letter: Letter, hop_limit: int) -> str | None:
    """Return why a letter is not sent back; None where it is sent."""
    if dialects.history(letter.message).hops >= hop_limit:
        return f"it was sent back {hop_limit} times already"
    if events.to_event(dialects.strip(letter.message)).get_type() == events.UNDELIVERABLE:
        return "its row never became a message: mend it and write it again"
    return None


def why_not_forwarded(letter: Letter, _there: Capabilities) -> str | None:
    """Return why a letter is not forwarded; None where it is forwarded."""
    if dialects.read(letter.message) is not None or letter.context is None:
        return "it was not put there by the broker itself"
    return None


def redrive_operation(targets: Targets, hop_limit: int) -> LetterOperation:
    """Return the redrive operation: letters with another target are sent only where that is allowed."""

    def why(letter: Letter, there: Capabilities) -> str | None:
        refused = targets.refused(letter, there)
        if refused is not None:
            return f"its target {refused!r} is not allowed (--allow-targets)"
        return why_left(letter, hop_limit)

    return LetterOperation(
        "redrive", lambda letter, there: sent_back(letter, there, targeted=not targets.none), targets.of, why
    )


#: Messages that the broker itself gave up are sent on unchanged; each sink's sender writes their context in its form.
FORWARD: Final = LetterOperation(
    "forward",
    lambda letter, _there: replace(letter.message, identity=identity.of_forwarded(letter)),
    lambda _letter, _there: None,
    why_not_forwarded,
)
