"""`Code`: why a message was not delivered, in words that mean the same on every broker.

An error carries one of these as `code`, and the client's own word beside it as `native_code`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Code(StrEnum):
    """Why something failed. The error class says what may be done about it; several classes can share a code."""

    # the message
    TOO_LARGE = "TOO_LARGE"
    INVALID_MESSAGE = "INVALID_MESSAGE"
    UNDECODABLE = "UNDECODABLE"
    # where it should go
    NO_SUCH_DESTINATION = "NO_SUCH_DESTINATION"
    INVALID_DESTINATION = "INVALID_DESTINATION"
    # the caller
    NOT_AUTHENTICATED = "NOT_AUTHENTICATED"
    NOT_AUTHORIZED = "NOT_AUTHORIZED"
    TLS_FAILED = "TLS_FAILED"
    # the way to the broker, and time
    CONNECTION_LOST = "CONNECTION_LOST"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNCONFIRMED = "UNCONFIRMED"
    # the broker
    UNAVAILABLE = "UNAVAILABLE"
    THROTTLED = "THROTTLED"
    FULL = "FULL"
    REJECTED = "REJECTED"
    CONFLICT = "CONFLICT"
    MISCONFIGURED = "MISCONFIGURED"
    UNSUPPORTED = "UNSUPPORTED"
    CORRUPT = "CORRUPT"
    # the client, and what went before
    LEASE_LOST = "LEASE_LOST"
    CLOSED = "CLOSED"
    NOT_SENT = "NOT_SENT"
    PARKED = "PARKED"
    # who received it
    HANDLER_FAILED = "HANDLER_FAILED"
    TERMINATED = "TERMINATED"
    DELIVERY_LIMIT = "DELIVERY_LIMIT"
    EXPIRED = "EXPIRED"
    # the rest
    BUG = "BUG"
    UNKNOWN = "UNKNOWN"


#: The meaning of each code, in one line.
MEANINGS: Final[dict[Code, str]] = {
    Code.TOO_LARGE: "The message, its headers or its key exceed a limit of the broker.",
    Code.INVALID_MESSAGE: "The message has content that the broker or the event format does not allow.",
    Code.UNDECODABLE: "A received message cannot be decoded.",
    Code.NO_SUCH_DESTINATION: "The queue or topic does not exist, or no queue takes the message.",
    Code.INVALID_DESTINATION: "No queue or topic can have this name, or rows must not be sent to it.",
    Code.NOT_AUTHENTICATED: "The broker does not accept the credentials, or none were found.",
    Code.NOT_AUTHORIZED: "The user lacks a permission.",
    Code.TLS_FAILED: "The TLS handshake failed, for example because a certificate is not trusted.",
    Code.CONNECTION_LOST: "No connection could be opened, or it broke.",
    Code.DEADLINE_EXCEEDED: "The time allowed ran out.",
    Code.UNCONFIRMED: "The broker or the client did not say what became of the message.",
    Code.UNAVAILABLE: "The broker was reached and cannot serve the request now, or failed while it did.",
    Code.THROTTLED: "The broker asks for fewer requests.",
    Code.FULL: "The queue, the disk or a quota has no room left.",
    Code.REJECTED: "The broker or a consumer rejected the message or request, and gave no more precise reason.",
    Code.CONFLICT: "The object exists already, differs from what was asked for, or is in use.",
    Code.MISCONFIGURED: "A setting of the client or the broker is wrong.",
    Code.UNSUPPORTED: "The broker, or its version, does not have the feature.",
    Code.CORRUPT: "The broker's store is damaged, or belongs to another program.",
    Code.LEASE_LOST: "The lease of a received message ran out, or another consumer has it.",
    Code.CLOSED: "The sender, receiver or other role is closed, or belongs to another process.",
    Code.NOT_SENT: "The message was not tried, because what went before it failed.",
    Code.PARKED: "An earlier message with the same key is dead-lettered.",
    Code.HANDLER_FAILED: "A handler raised an error.",
    Code.TERMINATED: "A handler gave the message up.",
    Code.DELIVERY_LIMIT: "The broker gave the message up after too many deliveries.",
    Code.EXPIRED: "The broker gave the message up because its time to live ran out.",
    Code.BUG: "The plugin or its client library made an error; please report it.",
    Code.UNKNOWN: "No code was given.",
}


def code_of(text: object) -> Code | None:
    """Return the code that a text spells; None where it is not in the vocabulary."""
    return Code.__members__.get(text) if isinstance(text, str) else None


def label(code: Code | None, native_code: str | None) -> str:
    """Return both as one text, for lists and counts: `TOO_LARGE (MSG_SIZE_TOO_LARGE)`; empty where both are unknown."""
    if code is None or code is Code.UNKNOWN:
        return native_code or code or ""
    return code if native_code in (None, "", code) else f"{code} ({native_code})"
