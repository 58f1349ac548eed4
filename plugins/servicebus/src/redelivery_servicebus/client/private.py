"""The private parts of azure-servicebus that this plugin uses: no other module touches one.

`TRIED` names the versions for which all of them were tried. A test fails on any other version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.amqp import AmqpAnnotatedMessage

from redelivery_servicebus.client.typed import Sections, Unreadable, brokers_part
from redelivery_servicebus.client.typed import sections as read_sections

T = TypeVar("T")

#: Versions of azure-servicebus for which the private parts below were tried.
TRIED: Final = ("7.15.0",)

# --- locks by their tokens ---
#
# The SDK settles over the link that a message came by, with a number that counts from zero on each link. A link that
# was opened again would settle another message under that number. So messages are settled by the lock's token, through
# the management node, as Service Bus documents it for every client. That is also the only way to give a dead letter
# properties: the SDK's public call leaves them out.


#: Locks of one request at most.
_LOCKS: Final = 100


def groups(locks: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield locks, or what belongs to each, for as many requests as they need."""
    return (locks[start : start + _LOCKS] for start in range(0, len(locks), _LOCKS))


def complete(receiver: ServiceBusReceiver, tokens: Sequence[Any], timeout: float) -> None:
    """Remove the messages. If it fails, some of them may have been removed."""
    _settle(receiver, "completed", tokens, timeout)


def abandon(receiver: ServiceBusReceiver, token: Any, timeout: float) -> None:
    """Return the message to its queue, which counts as a delivery."""
    _settle(receiver, "abandoned", [token], timeout)


def dead_letter(
    receiver: ServiceBusReceiver,
    token: Any,
    reason: str,
    description: str,
    properties: Mapping[str, str],
    timeout: float,
) -> None:
    """Move the message to the dead-letter sub-queue, with these properties set."""
    details: dict[str, Any] = {"deadletter-reason": reason, "deadletter-description": description}
    if properties:
        details["properties-to-modify"] = dict(properties)
    _settle(receiver, "suspended", [token], timeout, details)


def renew(receiver: ServiceBusReceiver, token: Any, timeout: float) -> float:
    """Lock the message for another lock duration; return until when, in seconds since the epoch."""
    answer = receiver._renew_locks(token, timeout=timeout)  # noqa: SLF001 - the public call wants the message's link
    return float(answer[b"expirations"][0]) / 1000


def renew_session(receiver: ServiceBusReceiver, _: Any, timeout: float) -> float:
    """Lock the receiver's session for another lock duration; return until when, in seconds since the epoch."""
    return receiver.session.renew_lock(timeout=timeout).timestamp()


def _settle(
    receiver: ServiceBusReceiver,
    status: str,
    tokens: Sequence[Any],
    timeout: float,
    details: dict[str, Any] | None = None,
) -> None:
    config = receiver._config  # noqa: SLF001 - this handler's own, and the only place for this request's timeout
    kept, config.try_timeout = config.try_timeout, timeout
    try:
        receiver._do_retryable_operation(  # noqa: SLF001 - it raises errors of the SDK's public kinds; retries are off
            receiver._settle_message_via_mgmt_link,  # noqa: SLF001 - see above
            settlement=status,
            lock_tokens=list(tokens),
            dead_letter_details=details,
        )
    finally:
        config.try_timeout = kept


# --- connections ---


def socket_of(handler: Any) -> Any:
    """Return the socket of a sender or receiver; None if the SDK does not let one see it."""
    for name in ("_handler", "_connection", "_transport", "sock"):
        handler = getattr(handler, name, None)
    return handler


def close_at_once(handler: Any) -> None:
    """Close a sender or receiver without the second for which the SDK waits for its keep-alive thread to end."""
    if getattr(handler, "_handler", None) is not None:
        handler._handler._keep_alive_thread = None  # noqa: SLF001 - no public way exists; that thread ends by itself
    handler.close()


# --- messages ---


class _Keeping(PyamqpTransport):
    """The SDK's transport, which also keeps what a message was decoded from: the SDK drops the types of its values.

    Of a message that came in several frames the first one is kept; it holds all but the end of the body.
    """

    @staticmethod
    def build_received_message(receiver: Any, message_type: Any, received: Any) -> Any:
        message: Any = PyamqpTransport.build_received_message(receiver, message_type, received)
        if isinstance(received[0], _StandIn):
            message._redelivery_unreadable = received[0].why  # noqa: SLF001 - an attribute of ours
        else:
            message._redelivery_payload = received[0][11]  # noqa: SLF001 - an attribute of ours
        return message

    @staticmethod
    def create_receive_client(receiver: Any, **more: Any) -> Any:
        client: Any = PyamqpTransport.create_receive_client(receiver, **more)
        ready = client._client_ready  # noqa: SLF001 - it makes the link

        def guarded() -> bool:
            made: bool = ready()
            link = client._link  # noqa: SLF001 - see above
            if not isinstance(link._incoming_transfer, partial):  # noqa: SLF001 - see above
                link._incoming_transfer = partial(_transferred, link, link._incoming_transfer)  # noqa: SLF001 - see above
            return made

        client._client_ready = guarded  # noqa: SLF001 - see above
        return client

    @staticmethod
    def mgmt_client_request(mgmt_client: Any, mgmt_msg: Any, *, callback: Any, **more: Any) -> Any:
        def answered(*given: Any, **named: Any) -> Any:
            return callback(*given, **{**named, "amqp_transport": _Keeping})  # the SDK names its own class

        return PyamqpTransport.mgmt_client_request(mgmt_client, mgmt_msg, callback=answered, **more)

    @staticmethod
    def parse_received_message(message: Any, message_type: Any, **kwargs: Any) -> Any:
        return [_parsed(each, message_type, kwargs) for each in (message.value or {}).get(b"messages", ())]


class _StandIn(list[Any]):
    """The frame of a message that the SDK cannot decode, with a payload that it can: as of `brokers_part`."""

    why: tuple[str, bytes]


def _transferred(link: Any, transferred: Callable[[Any], None], frame: Any) -> None:
    """Take a frame of a message. The SDK drops the connection over one that it cannot decode, and gets it again."""
    try:
        transferred(frame)
    except Exception as error:
        payload = bytes(link._received_payload) or bytes(frame[11])  # noqa: SLF001 - of all frames, if there are several
        part = brokers_part(payload)
        if frame[5] or _is_decodable(payload) or not (part and _is_decodable(part)):
            raise
        first = _StandIn(frame if frame[1] is not None else link._first_frame)  # noqa: SLF001 - as the SDK takes it
        first[11], first.why = memoryview(part), (repr(error), payload)
        again = first
        if frame[1] is None:
            link._first_frame, again = first, _StandIn(frame)  # noqa: SLF001 - see above
            again[11] = first[11]
        link._received_payload = bytearray()  # noqa: SLF001 - what the SDK had done until then is undone
        link.current_link_credit += 1
        link.delivery_count -= 1
        transferred(again)


def _is_decodable(payload: bytes) -> bool:
    try:
        decode_payload(memoryview(payload))
    except Exception:  # noqa: BLE001 - it may be any
        return False
    return True


def _parsed(source: Mapping[bytes, Any], message_type: Any, kwargs: Mapping[str, Any]) -> Any:
    """Return one message of an answer. The SDK decodes no char and no decimal, and gives up the whole answer."""

    def parse(given: Mapping[bytes, Any]) -> Any:
        answer = SimpleNamespace(value={b"messages": [given]})
        (parsed,) = PyamqpTransport.parse_received_message(answer, message_type, **kwargs)  # type: ignore[arg-type]
        return parsed

    payload = source[b"message"]
    try:
        parsed = parse(source)
    except Exception as error:
        parsed = parse({**source, b"message": brokers_part(bytes(payload))})
        if parsed.sequence_number is None:
            raise
        parsed._redelivery_unreadable = (repr(error), bytes(payload))  # noqa: SLF001 - an attribute of ours
    else:
        parsed._redelivery_payload = payload  # noqa: SLF001 - an attribute of ours
    return parsed


def unreadable(raw: Any) -> tuple[str, bytes] | None:
    """Return why the SDK cannot decode a message, and its bytes; None if it can."""
    found: tuple[str, bytes] | None = getattr(raw, "_redelivery_unreadable", None)
    return found


def keeping_payloads(receiver: ServiceBusReceiver) -> ServiceBusReceiver:
    """Return a receiver that is not open yet, so that `sections` knows its messages."""
    receiver._amqp_transport = _Keeping  # type: ignore[assignment] # noqa: SLF001 - only the client passes one
    receiver._build_received_message = partial(  # noqa: SLF001 - bound to the transport by the constructor
        _Keeping.build_received_message, receiver, ServiceBusReceivedMessage
    )
    return receiver


def sections(raw: Any) -> Sections | None:
    """Return the sections of a received message with their types; None if they cannot be read."""
    found: Sections | None = getattr(raw, "_redelivery_sections", None)
    payload = raw.__dict__.pop("_redelivery_payload", None) if found is None else None
    if payload is not None:  # read once, and not kept: it has the body again
        with suppress(Unreadable):
            found = read_sections(bytes(payload))
        raw._redelivery_sections = found  # noqa: SLF001 - an attribute of ours
    return found


def as_message(annotated: AmqpAnnotatedMessage) -> ServiceBusMessage:
    """Return an AMQP message as one that a sender takes: a public constructor takes a body of bytes only."""
    message = ServiceBusMessage(None)
    message._raw_amqp_message = annotated  # noqa: SLF001 - the only way to keep a body of another kind
    return message


# --- errors ---


def condition(error: BaseException) -> str | None:
    """Return the AMQP condition of an error."""
    found = getattr(error, "_condition", None)
    return str(found) if found else None


def status_code(error: BaseException) -> int | None:
    """Return the status of a request to the management node that failed."""
    found = getattr(error, "_status_code", None)
    return found if isinstance(found, int) else None


def was_token_refused(error: BaseException) -> bool:
    """Return whether a failed authentication is final.

    It is not if the token ran out on an idle link, or if the server had no time for it. A token that cannot be renewed
    is refused when the link is opened again.
    """
    cause = getattr(error, "inner_exception", None)
    kind, status = type(cause).__name__, getattr(cause, "status_code", None)  # classes that are not public
    busy = isinstance(status, int) and (status in (408, 429) or status >= 500)  # noqa: PLR2004 - HTTP's numbers
    return not (kind == "TokenExpired" or (kind == "TokenAuthFailure" and busy))
