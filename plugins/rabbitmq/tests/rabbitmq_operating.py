"""What tests do at a broker without redelivery: open a channel, and operate it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pika
from pika.adapters.blocking_connection import BlockingChannel

from redelivery_conformance.harness import CannotShow
from redelivery_conformance.subject import Subject
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.client.parameters import connection_parameters
from redelivery_rabbitmq.options import settings_of


@contextmanager
def raw(subject: Subject) -> Iterator[BlockingChannel]:
    """Open a channel at the place's broker."""
    options = {name.removeprefix("rabbitmq."): value for name, value in subject.place.options.items()}
    with pika.BlockingConnection(
        connection_parameters(Address.parse(subject.place.url), settings_of(options))
    ) as connection:
        yield connection.channel()


def queue_of(subject: Subject) -> str:
    """The name of the place's queue."""
    return Address.parse(subject.place.url).queue


def properties_of_next(subject: Subject, queue: str) -> pika.BasicProperties:
    """Take the next message out of a queue, waiting for it; return its properties."""
    end = time.monotonic() + subject.place.patience
    with raw(subject) as channel:
        while True:
            _, properties, _ = channel.basic_get(queue, auto_ack=True)
            if properties is not None:
                return properties
            assert time.monotonic() < end, f"no message came into {queue!r}"


def broker_version(subject: Subject) -> tuple[int, ...]:
    """Return the version of the broker."""
    _, version = subject.runtime.cluster.version().rsplit(" ", 1)  # type: ignore[attr-defined]
    return tuple(int(part) for part in version.split(".")[:2])


def operate(subject: Subject, *command: str) -> None:
    """Run `rabbitmqctl`."""
    operator = getattr(subject.runtime, "operator", None)
    if operator is None:
        raise CannotShow("what an operator does: a broker that was not started here has its own")
    operator.execute("rabbitmqctl", *command)


def as_user(subject: Subject, configure: str, write: str, read: str) -> str:
    """The place's URL as a user with these permissions, who exists until the test ends."""
    operate(subject, "add_user", name := f"user-{time.monotonic_ns()}", "secret")
    subject._stack.callback(lambda: operate(subject, "delete_user", name))
    operate(subject, "set_permissions", "-p", "/", name, configure, write, read)
    return replace(Address.parse(subject.place.url), username=name, password="secret").full_url  # noqa: S106
