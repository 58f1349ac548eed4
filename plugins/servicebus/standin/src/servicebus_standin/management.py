"""A client's requests to an entity's `$management` node and to `$cbs`: request in, reply out.

`amqp.py` finds the link for the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from servicebus_standin import codec, wire
from servicebus_standin.auth import Claim
from servicebus_standin.box import Box, Stored, StoreError
from servicebus_standin.codec import NULL, Content, Malformed, array, int32, timestamp, write
from servicebus_standin.store import Queue

#: Maximum size of a reply to a peek in bytes; it holds at least one message.
PEEK_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A request."""

    operation: str
    body: Any
    properties: Mapping[str, Any]
    reply_to: str | None
    message_id: bytes

    @classmethod
    def parse(cls, encoded: bytes) -> Request:
        """Raises Malformed."""
        content = Content.parse(encoded)
        values = [value for code, _, value, _ in codec.sections(content.body) if code == codec.VALUE]
        body = codec.read(content.body, values[0]) if values else None
        properties = content.application_properties()
        return cls(str(properties.get("operation")), body, properties, content.property(4), content.properties[0])


def reply(request: Request, properties: Mapping[str, Any], body: Any = None) -> bytes:
    """Return an encoded reply. Its correlation id is the request's message id, with the same type."""
    fields = [NULL] * 5 + [request.message_id]
    return b"".join((
        codec.section(codec.PROPERTIES, codec.compound(0xD0, fields)),
        codec.section(codec.APPLICATION, write(dict(properties))),
        codec.section(codec.VALUE, write(body)),
    ))  # fmt: skip


def answer(request: Request, queue: Queue, box: Box, allowed: Callable[[Claim], bool]) -> bytes:
    """Process a request to an entity and encode the reply."""
    try:
        body = _operation(request, allowed)(request.body, queue, box)
    except StoreError as error:
        return reply(request, _status(error.status, str(error), error.condition))
    except (Malformed, KeyError, TypeError, ValueError) as error:
        text = f"The request's body is not as it should be: {error!r}"
        return reply(request, _status(400, text, "com.microsoft:argument-error"))
    if body is None:
        return reply(request, _status(204, "No messages available.", "com.microsoft:message-not-found"))
    return reply(request, _status(200, "OK"), body)


def _operation(request: Request, allowed: Callable[[Claim], bool]) -> Callable[[Mapping[str, Any], Queue, Box], Any]:
    claim: Claim = "Send" if request.operation in _SENDING else "Listen"
    if not allowed(claim):
        raise StoreError("amqp:unauthorized-access", 401, f"Unauthorized access. '{claim}' claim(s) are required.")
    if request.operation not in _OPERATIONS:
        text = f"The stand-in does not know the operation {request.operation}."
        raise StoreError("amqp:not-implemented", 501, text)
    return _OPERATIONS[request.operation]


def _status(code: int, text: str, condition: str | None = None) -> dict[str, Any]:
    status: dict[str, Any] = {"statusCode": int32(code), "statusDescription": text}
    if condition is not None:
        status["errorCondition"] = codec.Symbol(condition)
    return status


def _peek(body: Mapping[str, Any], _: Queue, box: Box) -> Any:
    found: list[dict[str, bytes]] = []
    size = 0
    for message in box.peek(body["from-sequence-number"], body["message-count"], body.get("session-id")):
        encoded = wire.give(message)
        size += len(encoded)
        if found and size > PEEK_BYTES:
            break
        found.append({"message": encoded})
    return {"messages": found} if found else None


def _renew(body: Mapping[str, Any], _: Queue, box: Box) -> Any:
    return {"expirations": array(0x83, [timestamp(box.renew(token)).encoded for token in _tokens(body)])}


def _renew_session(body: Mapping[str, Any], _: Queue, box: Box) -> Any:
    return {"expiration": timestamp(box.renew_session(body["session-id"]))}


def _state(body: Mapping[str, Any], _: Queue, box: Box) -> Any:
    return {"session-state": box.state(body["session-id"])}


def _set_state(body: Mapping[str, Any], _: Queue, box: Box) -> Any:
    box.set_state(body["session-id"], body["session-state"])
    return {}


def _schedule(body: Mapping[str, Any], queue: Queue, _: Box) -> Any:
    numbers = wire.take(queue, *(bytes(each["message"]) for each in body["messages"]), scheduled=True)
    return {"sequence-numbers": array(0x81, [write(number) for number in numbers])}


def _cancel(body: Mapping[str, Any], _: Queue, box: Box) -> Any:
    box.cancel(body["sequence-numbers"])
    return {}


def _receive(body: Mapping[str, Any], queue: Queue, box: Box) -> Any:
    queue.admit_receiver()
    delete = body["receiver-settle-mode"] == 0
    found = box.take_deferred(body["sequence-numbers"], delete=delete)
    return {"messages": [_locked(message) for message in found]}


def _locked(message: Stored) -> dict[str, Any]:
    given: dict[str, Any] = {"message": wire.give(message)}
    if message.token is not None:
        given["lock-token"] = message.token
    return given


def _settle(body: Mapping[str, Any], _: Queue, box: Box) -> Any:
    status = body["disposition-status"]
    modify = body.get("properties-to-modify") or {}
    for token in _tokens(body):
        if status == "completed":
            box.complete(token)
        elif status == "abandoned":
            box.abandon(token, modify)
        elif status == "defered":  # as the protocol spells it
            box.defer(token, modify)
        elif status == "suspended":
            box.dead_letter(token, body.get("deadletter-reason"), body.get("deadletter-description"), modify)
        else:
            raise ValueError(status)
    return {}


def _tokens(body: Mapping[str, Any]) -> Sequence[UUID]:
    tokens: Iterable[Any] = body["lock-tokens"]
    return [token if isinstance(token, UUID) else UUID(str(token)) for token in tokens]


_SENDING: Final = ("com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message")
_OPERATIONS: Final[Mapping[str, Callable[[Mapping[str, Any], Queue, Box], Any]]] = {
    "com.microsoft:peek-message": _peek,
    "com.microsoft:renew-lock": _renew,
    "com.microsoft:renew-session-lock": _renew_session,
    "com.microsoft:get-session-state": _state,
    "com.microsoft:set-session-state": _set_state,
    "com.microsoft:schedule-message": _schedule,
    "com.microsoft:cancel-scheduled-message": _cancel,
    "com.microsoft:receive-by-sequence-number": _receive,
    "com.microsoft:update-disposition": _settle,
}
