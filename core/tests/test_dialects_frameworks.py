"""Golden vectors: the error contexts that messaging frameworks write into their dead letters are read.

Written as these programs write them, by their sources: Spring AMQP's `RepublishMessageRecoverer` (3.1), MassTransit's
`SetExceptionHeaders` (8.2), NServiceBus's fault headers (5 to 9).
"""

from __future__ import annotations

import pytest

from redelivery.contract.broker import Letter
from redelivery.contract.context import ErrorContext
from redelivery.contract.message import Headers, Message
from redelivery.deadletters.trust import context_of
from redelivery.formats import dialects

_TRACE = (
    "org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener method 'void "
    "org.example.Flights.on(java.lang.String)' threw exception\n"
    "\tat org.springframework.amqp.rabbit.listener.adapter.MessagingMessageListenerAdapter.invokeHandler(...)\n"
    "Caused by: org.example.NoSuchAirport: no such airport: größe\n"
    "\tat org.example.Flights.on(Flights.java:17)\n"
    "Caused by: java.sql.SQLException: closed\n"
)
SPRING: Headers = (
    ("mine", b"1"),
    ("x-exception-stacktrace", _TRACE.encode()),
    ("x-exception-message", "no such airport: größe".encode()),
    ("x-original-exchange", b""),
    ("x-original-routingKey", b"flights"),
)
OF_SPRING = ErrorContext(
    reason="no such airport: größe", exception="org.example.NoSuchAirport", stacktrace=_TRACE, target="flights"
)
MASSTRANSIT: Headers = (
    ("Content-Type", b"application/vnd.masstransit+json"),
    ("MT-Reason", b"fault"),
    ("MT-Fault-ExceptionType", b"Shop.NoSuchAirportException"),
    ("MT-Fault-InputAddress", b"loopback://localhost/flights%20v2?temporary=true"),
    ("MT-Fault-Message", b"no such airport"),
    ("MT-Fault-Timestamp", b"2023-11-14T22:13:20.1234567Z"),
    ("MT-Fault-StackTrace", b"   at Shop.Flights.Consume(ConsumeContext`1 context)"),
    ("MT-Fault-ConsumerType", b"Shop.Flights"),
    ("MT-Fault-MessageType", b"Shop.FlightBooked"),
    ("MT-Fault-RetryCount", b"2"),
    ("MT-Host-MachineName", b"host"),
)
OF_MASSTRANSIT = ErrorContext(
    reason="no such airport",
    exception="Shop.NoSuchAirportException",
    stacktrace="   at Shop.Flights.Consume(ConsumeContext`1 context)",
    component="Shop.Flights",
    attempts=3,
    last_failure_ms=1_700_000_000_123,
    target="flights v2",
    extra={"message-type": "Shop.FlightBooked"},
)
NSERVICEBUS: Headers = (
    ("NServiceBus.MessageId", b"2937a3e5"),
    ("NServiceBus.ExceptionInfo.ExceptionType", b"System.Exception"),
    ("NServiceBus.ExceptionInfo.InnerExceptionType", b"System.IO.IOException"),
    ("NServiceBus.ExceptionInfo.HelpLink", b""),
    ("NServiceBus.ExceptionInfo.Message", b"An error occurred"),
    ("NServiceBus.ExceptionInfo.Source", b"NServiceBus.Core"),
    ("NServiceBus.ExceptionInfo.StackTrace", b"System.Exception: An error occurred\r\n   at ..."),
    ("NServiceBus.FailedQ", b"Sales"),
    ("NServiceBus.TimeOfFailure", b"2014-11-11 02:26:58:000462 Z"),
    ("NServiceBus.ProcessingEndpoint", b"Sales.Endpoint"),
)
OF_NSERVICEBUS = ErrorContext(
    reason="An error occurred",
    exception="System.Exception",
    stacktrace="System.Exception: An error occurred\r\n   at ...",
    target="Sales",
    subscriber="Sales.Endpoint",
    last_failure_ms=1_415_672_818_000,
    extra={"InnerExceptionType": "System.IO.IOException", "Source": "NServiceBus.Core"},
)


@pytest.mark.parametrize(
    ("headers", "context"),
    [
        (SPRING, OF_SPRING),
        (
            (("x-exception-message", b"no"), ("x-original-exchange", b"shop"), ("x-original-routingKey", b"a.b")),
            ErrorContext(reason="no", extra={"original-exchange": "shop", "original-routing-key": "a.b"}),
        ),
        (
            (("x-exception-stacktrace", b"java.lang.Error\n\tat x"),),
            ErrorContext(exception="java.lang.Error", stacktrace="java.lang.Error\n\tat x"),
        ),
        (MASSTRANSIT, OF_MASSTRANSIT),
        ((("MT-Reason", b"dead-letter"),), ErrorContext(reason="no consumer takes this type of message")),
        (NSERVICEBUS, OF_NSERVICEBUS),
    ],
    ids=["spring", "spring, by an exchange", "spring, cut", "masstransit", "masstransit, skipped", "nservicebus"],
)
def test_a_letter_of_a_framework_says_why(headers: Headers, context: ErrorContext) -> None:
    message = Message(value=b"v", headers=headers)
    found = context_of(Letter(position="p", message=message))
    assert found == context
    assert dialects.strip(message) is message, "what another program wrote stays"


@pytest.mark.parametrize(
    "headers",
    [
        (("NServiceBus.ProcessingEndpoint", b"Sales"),),
        (("MT-Reason", b"fault"),),
        (("MT-Fault-RetryCount", b"2"),),
        (("x-original-routingKey", b"flights"),),
    ],
    ids=lambda headers: headers[0][0],
)
def test_a_message_that_has_not_failed_has_no_context(headers: Headers) -> None:
    assert dialects.read(Message(value=b"v", headers=headers)) is None


HOSTILE = [b"", b"\xff\xfe", b"9" * 5000, b"\0" * 100, b"2023-11-14T22:13:20+99:99", b"9999-12-31T23:59:59-23:59"]


@pytest.mark.parametrize("value", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("headers", [SPRING, MASSTRANSIT, NSERVICEBUS], ids=["spring", "masstransit", "nservicebus"])
def test_whatever_stands_in_such_headers_it_is_read(headers: Headers, value: bytes) -> None:
    for at, (name, _) in enumerate(headers):
        forged = (*headers[:at], (name, value), *headers[at + 1 :])
        context_of(Letter(position="p", message=Message(value=b"v", headers=forged)))
    everything = tuple((name, value) for name, _ in headers)
    context_of(Letter(position="p", message=Message(value=b"v", headers=everything)))
