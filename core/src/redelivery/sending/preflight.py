"""Preflight: ask a destination and its sinks once whether they could ever work, before a job begins.

Each place is asked by its own thread, so that a place that does not answer delays nothing for longer than the bound.
Nothing is sent, and no connection is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from redelivery import policy
from redelivery.base.clock import SystemClock
from redelivery.base.urls import redact
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import Ambiguous, MissingSecret, RedeliveryError, Retriable
from redelivery.sending.connector import ConnectionFactory, Connector, NotCheckable, Resources, connected
from redelivery.sending.send_queue import Bounds

#: Seconds that a preflight may take, whatever the spec gives an attempt.
LONGEST: Final = 10.0
#: Seconds more for what follows an answer at the deadline: a look whether the host's name exists.
_MORE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Unverified:
    """A place that could not be asked, or gave no sure answer: the job may still work."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


def preflight(
    url: str,
    spec: DeliverySpec,
    *,
    options: Mapping[str, str],
    shared_mount: bool = False,
    connection_factory: ConnectionFactory = connected,
) -> list[Unverified]:
    """Open a destination and its sinks, ask each whether it could work, and close them.

    Args:
        url: where rows go.
        spec: how rows are delivered.
        options: the destination's client options, with their plugin's prefix.
        shared_mount: places of one host lie on a mount, which this machine may not have.
        connection_factory: opens a connection to a broker; by default `connected`.

    Returns:
        Doubts that remain: places that are down now, for which this machine has no secret, or that did not answer.

    Raises:
        RedeliveryError: a place can never work: wrong credentials, a missing target, a wrong URL, a host whose name
            does not exist. The first error only.
    """
    deadline = time.monotonic() + min(policy.attempt_timeout(spec), LONGEST)
    questions = [
        _Check(url, spec, options, sink, deadline, shared_mount=shared_mount, connection_factory=connection_factory)
        for sink in (None, *spec.dead_letter_sink)
    ]
    for each in questions:
        each.start()
    for each in questions:
        each.join(max(0.0, deadline + _MORE - time.monotonic()))
    answers = [each.answer for each in questions]
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return [answer for answer in answers if isinstance(answer, Unverified)]


class _Check(threading.Thread):
    """One place, asked once. A thread without an answer in time is left behind: it closes what it opened."""

    def __init__(
        self,
        url: str,
        spec: DeliverySpec,
        options: Mapping[str, str],
        sink: Sink | None,
        deadline: float,
        *,
        shared_mount: bool,
        connection_factory: ConnectionFactory,
    ) -> None:
        super().__init__(name="redelivery-preflight", daemon=True)
        self._url, self._spec, self._options, self._sink = url, spec, options, sink
        self._deadline, self._shared_mount, self._connection_factory = deadline, shared_mount, connection_factory
        self._place = redact(url) if sink is None else f"dead letter sink {redact(sink.uri) or sink.ref}"
        self.answer: Unverified | Exception | None = Unverified(self._place, "it gave no answer in time")

    def run(self) -> None:
        self.answer = self._ask()

    def _ask(self) -> Unverified | Exception | None:
        try:
            with Resources() as resources:
                connector = Connector(
                    url=self._url,
                    spec=self._spec,
                    options=self._options,
                    bounds=Bounds(),
                    clock=SystemClock(),
                    connection_factory=self._connection_factory,
                    resources=resources,
                )
                connector.check(self._sink, self._deadline, shared_mount=self._shared_mount)
        except (Retriable, Ambiguous, MissingSecret, NotCheckable) as error:
            return Unverified(self._place, redact(str(error)))
        except RedeliveryError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a plugin that fails to close; its tasks will tell
            return Unverified(self._place, redact(f"{type(error).__name__}: {error}"))
        return None
