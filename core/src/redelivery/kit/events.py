"""Messages as CloudEvents in JSON, for brokers that store nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redelivery.contract.message import Message
from redelivery.formats import events

__all__ = ["from_json", "to_json"]


def to_json(message: Message, *, exact: bool = True) -> dict[str, Any]:
    """Return a message as a CloudEvent in JSON; its key and headers are kept as attributes of ours.

    Args:
        message: any.
        exact: keep how an event was written, too, so that `from_json` returns the very message. False: a message that
            is an event, and nothing else, becomes that event without any attribute of ours.
    """
    return events.form_of(message) if exact else events.bare_form_of(message)


def from_json(event: Mapping[str, Any]) -> Message:
    """Return the message that `to_json` was given, or the message of any other CloudEvent.

    Raises:
        ValueError: it is not a CloudEvent; says why.
    """
    try:
        return events.message_of(event)
    except Exception as error:
        raise ValueError(f"its event is not a CloudEvent: {error}") from error
