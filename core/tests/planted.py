"""Twenty causes of dead letters: messages as clients really raise them, with text that varies from letter to letter."""

from __future__ import annotations

import base64
import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from redelivery.codes import Code
from redelivery.contract.context import ErrorContext

_WORDS: Final = ("blue", "large", "O'Neill", "Zürich", "müller", "rush order", "gift wrap", "straße 5", "n/a", "order")
_BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Varying:
    """Text that varies."""

    def __init__(self, random: random.Random) -> None:
        self.random = random

    def n(self, most: int = 10**6) -> int:
        return self.random.randrange(1, most)

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128)))

    def hex(self, length: int = 12) -> str:
        return f"{self.random.getrandbits(4 * length):0{length}x}"

    def blob(self, length: int = 24) -> str:
        return base64.b64encode(self.random.randbytes(length)).decode()

    def ip(self) -> str:
        return ".".join(str(self.random.randrange(256)) for _ in range(4))

    def host(self) -> str:
        name = self.random.choice(("kafka", "broker", "b", "ip-10-0-3-7", "node"))
        domain = self.random.choice(("svc.cluster.local", "eu-west-1.compute.internal", "prod.example.com"))
        return f"{name}-{self.n(40)}.{domain}"

    def time(self) -> str:
        moment = _BEGIN + timedelta(milliseconds=self.n(10**10))
        form = self.random.choice(
            ("%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%d %H:%M:%S", "%a, %d %b %Y %H:%M:%S GMT", "%b %d %H:%M:%S")
        )
        return moment.strftime(form)

    def name(self) -> str:
        return self.random.choice(_WORDS)

    def order(self) -> str:
        return self.random.choice((str(self.n()), self.uuid(), f"ORD{self.n()}X", self.hex(24)))

    def body(self) -> str:
        found = {"order_id": self.order(), "name": self.name(), "qty": self.n(9), "price": self.n(10**5) / 100}
        return json.dumps(found, ensure_ascii=self.random.random() < 0.5)


def _context(code: Code | None, kind: str, exception: str, reason: str, native_code: str | None = None) -> ErrorContext:
    return ErrorContext(code=code, kind=kind, exception=exception, reason=reason, native_code=native_code)


def _kafka_size(v: Varying) -> ErrorContext:
    text = f'KafkaError{{code=MSG_SIZE_TOO_LARGE,val=10,str="Unable to produce message: {v.n(10**7)} bytes exceed"}}'
    return _context(Code.TOO_LARGE, "permanent", "cimpl.KafkaException", text, "MSG_SIZE_TOO_LARGE")


def _kafka_down(v: Varying) -> ErrorContext:
    text = (
        f"sasl_ssl://{v.host()}:9093/{v.n(20)}: Connect to ipv4#{v.ip()}:9093 failed: Connection refused "
        f"(after {v.n(900)}ms in state CONNECT, {v.n(30)} identical error(s) suppressed)"
    )
    return _context(Code.CONNECTION_LOST, "retriable", "cimpl.KafkaException", text, "_TRANSPORT")


def _kafka_timed_out(v: Varying) -> ErrorContext:
    text = f"orders [{v.n(64)}]: message timed out after {v.n(300000)} ms at offset {v.n()} on broker {v.n(9)}"
    return _context(Code.DEADLINE_EXCEEDED, "ambiguous", "cimpl.KafkaException", text, "_MSG_TIMED_OUT")


def _rabbit_no_queue(v: Varying) -> ErrorContext:
    text = f"(404, \"NOT_FOUND - no queue 'orders.{v.hex(8)}' in vhost '/'\")"
    return _context(Code.NO_SUCH_DESTINATION, "permanent", "pika.exceptions.ChannelClosedByBroker", text)


def _rabbit_arguments(v: Varying) -> ErrorContext:
    text = (
        f"(406, \"PRECONDITION_FAILED - inequivalent arg 'x-message-ttl' for queue 'orders-{v.n(99)}' in vhost '/': "
        f"received '{v.n()}' but current is '{v.n()}'\")"
    )
    return _context(Code.MISCONFIGURED, "fatal", "pika.exceptions.ChannelClosedByBroker", text)


def _aws_throttled(v: Varying) -> ErrorContext:
    text = (
        f"An error occurred (ThrottlingException) when calling the SendMessageBatch operation (reached max retries: "
        f"{v.n(9)}): Rate exceeded; RequestId: {v.uuid()}; HostId: {v.blob(40)}"
    )
    return _context(Code.THROTTLED, "retriable", "botocore.exceptions.ClientError", text)


def _aws_denied(v: Varying) -> ErrorContext:
    text = (
        "An error occurred (AccessDenied) when calling the SendMessage operation: "
        f"User: arn:aws:sts::{v.n(10**12):012}:"
        f"assumed-role/etl/i-{v.hex(17)} is not authorized to perform: sqs:sendmessage on resource: "
        f"arn:aws:sqs:eu-west-1:{v.n(10**12):012}:orders-{v.n(50)} because no identity-based policy allows it"
    )
    return _context(Code.NOT_AUTHORIZED, "permanent", "botocore.exceptions.ClientError", text)


def _azure_throttled(v: Varying) -> ErrorContext:
    text = (
        f"The request was terminated because the entity is being throttled. Error code: 50009. Please wait {v.n(9)} "
        f"seconds and try again. Reference:{v.uuid()}, TrackingId:{v.uuid()}_G{v.n(9)}, "
        f"SystemTracker:shop:Queue:orders, Timestamp:{v.time()}"
    )
    return _context(Code.THROTTLED, "retriable", "azure.servicebus.exceptions.ServiceBusServerBusyError", text)


def _azure_lock(v: Varying) -> ErrorContext:
    text = (
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
        f" Reference:{v.uuid()}, TrackingId:{v.uuid()}_B{v.n(30)}, Timestamp:{v.time()}"
    )
    return _context(Code.LEASE_LOST, "retriable", "azure.servicebus.exceptions.MessageLockLostError", text)


def _sql_duplicate(v: Varying) -> ErrorContext:
    text = (
        f'duplicate key value violates unique constraint "orders_pkey"\nDETAIL:  Key (order_id, name)=({v.order()}, '
        f"{v.name()}) already exists."
    )
    return _context(None, "permanent", "psycopg.errors.UniqueViolation", text, "23505")


def _sql_null(v: Varying) -> ErrorContext:
    text = (
        f'null value in column "customer" of relation "orders" violates not-null constraint\nDETAIL:  Failing row '
        f"contains ({v.n()}, null, {v.name()}, {v.time()}, {v.n(10**5) / 100})."
    )
    return _context(None, "permanent", "psycopg.errors.NotNullViolation", text, "23502")


def _sql_null_of_another_column(v: Varying) -> ErrorContext:
    text = (
        f'null value in column "sku" of relation "orders" violates not-null constraint\nDETAIL:  Failing row contains '
        f"({v.n()}, {v.name()}, null, {v.time()}, {v.n(10**5) / 100})."
    )
    return _context(None, "permanent", "psycopg.errors.NotNullViolation", text, "23502")


def _sql_deadlock(v: Varying) -> ErrorContext:
    text = (
        f"deadlock detected\nDETAIL:  Process {v.n()} waits for ShareLock on transaction {v.n()}; blocked by process "
        f"{v.n()}.\nHINT:  See server log for query details."
    )
    return _context(None, "retriable", "psycopg.errors.DeadlockDetected", text, "40P01")


def _http_503(v: Varying) -> ErrorContext:
    text = (
        f"503 Server Error: Service Unavailable for url: https://{v.host()}/v1/orders/{v.order()}/items?page={v.n(9)}"
        f"&trace={v.hex(32)}"
    )
    return _context(Code.HANDLER_FAILED, "retriable", "requests.exceptions.HTTPError", text)


def _http_404(v: Varying) -> ErrorContext:
    text = f"404 Client Error: Not Found for url: https://{v.host()}/v1/orders/{v.order()}/items?page={v.n(9)}"
    return _context(Code.HANDLER_FAILED, "retriable", "requests.exceptions.HTTPError", text)


def _http_refused(v: Varying) -> ErrorContext:
    host = v.host()
    text = (
        f"HTTPSConnectionPool(host='{host}', port={v.random.choice((443, 8443))}): Max retries exceeded with url: "
        f"/v1/orders/{v.order()} (Caused by NewConnectionError('<urllib3.connection.HTTPSConnection object at "
        f"0x{v.hex()}>: Failed to establish a new connection: [Errno 111] Connection refused'))"
    )
    return _context(Code.HANDLER_FAILED, "retriable", "requests.exceptions.ConnectionError", text)


def _java_null(v: Varying) -> ErrorContext:
    text = (
        f'java.lang.NullPointerException: Cannot invoke "com.acme.Customer.getName()" because the return value of '
        f'"com.acme.Order.getCustomer()" is null at com.acme.Handler$$Lambda${v.n(999)}/0x{v.hex(16)}.apply(Unknown '
        f"Source) [pool-{v.n(9)}-thread-{v.n(64)}] order={v.order()}"
    )
    return _context(Code.HANDLER_FAILED, "permanent", "java.lang.NullPointerException", text)


def _java_enum(v: Varying) -> ErrorContext:
    text = (
        f'Cannot deserialize value of type `com.acme.Currency` from String "{v.name()}": not one of the values '
        "accepted for Enum class: [EUR, USD, CHF]\n"
        f' at [Source: (String)"{v.body()}"; line: 1, column: {v.n(200)}] (through reference chain: '
        'com.acme.Order["currency"])'
    )
    return _context(
        Code.INVALID_MESSAGE, "permanent", "com.fasterxml.jackson.databind.exc.InvalidFormatException", text
    )


def _json_broken(v: Varying) -> ErrorContext:
    what = v.random.choice(("Expecting ',' delimiter", "Expecting ':' delimiter"))
    text = f"{what}: line {v.n(9)} column {v.n(400)} (char {v.n(400)})"
    return _context(Code.INVALID_MESSAGE, "permanent", "json.decoder.JSONDecodeError", text)


def _rule_broken(v: Varying) -> ErrorContext:
    text = (
        f"order-{v.n()} of customer {v.hex(8)}: total -{v.n(10**5) / 100} is negative; checked at "
        f"{v.time()} by worker@{v.hex(8)} in "
        f"/data/in/2026-{v.n(12):02}-{v.n(28):02}/part-{v.n(999):05}-{v.uuid()}.json"
    )
    return _context(Code.HANDLER_FAILED, "permanent", "shop.rules.Broken", text)


#: The causes, by name.
CAUSES: Final[dict[str, Callable[[Varying], ErrorContext]]] = {
    name.strip("_"): make
    for name, make in globals().copy().items()
    if name.startswith("_") and getattr(make, "__annotations__", {}).get("v") == "Varying"
}
