"""The types that users of the public API see. Nothing here runs: `nox -s types` checks it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import assert_type

from redelivery import (
    DeadLetterQueue,
    DeliveryReport,
    DeliverySpec,
    DeliveryStatus,
    Message,
    RedriveReport,
    RedriveSettings,
    Selection,
    Sink,
    Subscription,
    SubscriptionReport,
    connect,
    dead_letters,
)
from redelivery.codes import Code
from redelivery.contract.broker import Broker, Letter
from redelivery.contract.context import ErrorContext
from redelivery.errors import BrokerError, Throttled


def handle(message: Message) -> None:
    assert_type(message.value, bytes | None)
    assert_type(message.id, str | None)


def subscribes(url: str) -> None:
    spec = DeliverySpec(retry=3, dead_letter_sink=(Sink(uri="native"),))
    subscription = Subscription(url, handle, spec=spec, workers=4)
    assert_type(subscription.terminate("order-42", "a reason"), Future[None])
    report = subscription.run(until_empty=True)
    assert_type(report, SubscriptionReport)
    assert_type(report.accepted, int)


def redrives(url: str) -> None:
    with dead_letters(url) as queue:
        assert_type(queue, DeadLetterQueue)
        assert_type(iter(queue), Iterator[Letter])
        for letter in queue.select(Selection.parse("age>PT1H")):
            assert_type(letter.context, ErrorContext | None)
            if letter.context is not None:
                assert_type(letter.context.code, Code | None)
                assert_type(letter.context.native_code, str | None)
        assert_type(queue.redrive(settings=RedriveSettings(rate=50)), RedriveReport)
        assert_type(queue.remove(["order-42"]), int)


def connects(url: str) -> None:
    with connect(url) as broker:
        assert_type(broker, Broker)


def fails(error: BrokerError) -> None:
    assert_type(error.code, Code)
    assert_type(error.native_code, str | None)
    if isinstance(error, Throttled):
        assert_type(error.retry_after, float)


def reports(report: DeliveryReport, status: DeliveryStatus) -> None:
    assert_type(report.delivered, int)
    assert_type(status, DeliveryStatus)
