"""The base of roles that ask and wait for the answers. After an error that may concern the connection it is closed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redelivery.errors import BrokerError, Retriable
from redelivery.kit.errors import Code
from redelivery.kit.roles import Resource
from redelivery_nats.address import Address
from redelivery_nats.client.connection import Connection, answered, command
from redelivery_nats.errors import DISABLED, NOBODY, TABLE, ApiError, StatusError
from redelivery_nats.options import Settings

#: Seconds that any call may take.
PATIENCE: Final = 20.0
#: Requests that are asked at once.
AT_ONCE: Final = 256

#: A request: its subject, its payload, and its block of headers.
Request = tuple[str, bytes, bytes]


class Answers:
    """The answers to some requests, as they come in."""

    def __init__(self, count: int) -> None:
        self.found: list[bytes | Exception | None] = [None] * count
        self._left = count
        self._changed = threading.Condition()

    def take(self, answer: bytes | Exception, at: int, _: object) -> None:
        """Note one; called in the loop."""
        with self._changed:
            self.found[at] = answer
            self._left -= 1
            if not self._left:
                self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all are there; return whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._left, max(seconds, 0))


class Asking(Resource):
    """A role with a connection, which is opened at its first use."""

    def __init__(self, address: Address, settings: Settings) -> None:
        super().__init__("nats", f"stream {address.stream!r}")
        self._address, self._settings = address, settings
        self._connection: Connection | None = None

    def _connected(self, within: float = PATIENCE) -> Connection:
        connection = self._connection
        if connection is not None and connection.lost is not None:
            self._release()
            connection = None
        if connection is None:
            connection = self._new_connection()
            try:
                connection.open(within)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return connection

    def _new_connection(self) -> Connection:
        return Connection(self._address, self._settings, self._place)

    def _ask(self, doing: str, requests: Sequence[Request], *, end: float | None = None) -> list[bytes | Exception]:
        """Ask all requests; return each one's answer, or the error that stands for it. Raises BrokerError: connecting.

        Args:
            doing: for errors.
            requests: what is asked.
            end: monotonic seconds by which the answers must have come.
        """
        self.check_open(doing)
        end = time.monotonic() + PATIENCE if end is None else end
        found: list[bytes | Exception] = []
        connection = self._connected(max(end - time.monotonic(), 0.01))
        for start in range(0, len(requests), AT_ONCE):
            part = requests[start : start + AT_ONCE]
            answers = Answers(len(part))
            replies = [connection.expect(answers.take, subject, at) for at, (subject, _, _) in enumerate(part)]
            connection.write(
                b"".join(
                    command(subject, reply, payload, block)
                    for (subject, payload, block), reply in zip(part, replies, strict=True)
                )
            )
            if connection.lost is not None or not answers.wait(end - time.monotonic()):
                for reply in replies:
                    connection.forget(reply)
                late = connection.lost or TimeoutError("no answer in time")
                self._release()  # an answer may still come, to nobody
                found += [late if each is None else each for each in answers.found]
                return found + [late] * (len(requests) - len(found))
            found += [each for each in answers.found if each is not None]
        return found

    def _api(
        self, doing: str, what: str, body: Mapping[str, Any] | None = None, *, safe: bool = True
    ) -> dict[str, Any]:
        """Ask the API; return its answer. Raises BrokerError."""
        (found,) = self._api_all(doing, [(what, body)], safe=safe)
        if isinstance(found, BrokerError):
            raise found
        return found

    def _api_all(
        self,
        doing: str,
        asked: Sequence[tuple[str, Mapping[str, Any] | None]],
        *,
        safe: bool = True,
    ) -> list[dict[str, Any] | BrokerError]:
        """Ask the API several times; return each answer, or its error. Raises BrokerError: the connection failed."""
        prefix = self._settings.api_prefix
        requests = [
            (f"{prefix}.{what}", b"" if body is None else json.dumps(body).encode(), b"") for what, body in asked
        ]
        found: list[dict[str, Any] | BrokerError] = []
        for answer, (subject, _, _) in zip(self._ask(doing, requests), requests, strict=True):
            try:
                found.append(answered(answer))
            except Exception as error:  # noqa: BLE001 - the table sorts it
                found.append(self._api_error(error, doing, subject, safe=safe))
        return found

    def _api_error(self, error: Exception, doing: str, subject: str, *, safe: bool = True) -> BrokerError:
        is_nobody = isinstance(error, StatusError) and error.status == NOBODY
        needs = f"the right to publish to {subject}"
        return TABLE.error(error, self.doing(doing), rule=DISABLED if is_nobody else None, safe=safe, needs=needs)

    def _nobody(self, doing: str, subject: str, cause: Exception) -> BrokerError:
        """Ask which stream has a subject that nobody listens to, and return the error."""
        (found,) = self._api_all(doing, [("STREAM.NAMES", {"subject": subject})])
        return found if isinstance(found, BrokerError) else self._silent(doing, subject, found, cause)

    def _silent(self, doing: str, subject: str, found: Mapping[str, Any], cause: Exception) -> BrokerError:
        """Return the error of a subject that nobody listens to: its stream may be moving to another server."""
        streams = found.get("streams")
        if not streams:
            return TABLE.error(cause, f"{doing} the subject {subject!r}")
        text = f"the stream {streams[0]!r} does not answer now; nothing was stored"
        error = Retriable(f"nats: {self.doing(doing)}: {text}", code=Code.UNAVAILABLE)
        error.__cause__ = cause
        return error

    def _largest(self, connection: Connection) -> int:
        """Return the size of the largest message: the server closes the connection at one that it does not accept."""
        most = self._settings.max_payload
        return min(most, int(connection.server.get("max_payload") or most))

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def is_missing(error: object) -> bool:
    """Whether an error says that a message is not in its stream."""
    cause = error.__cause__ if isinstance(error, BrokerError) else error
    return isinstance(cause, ApiError) and cause.is_missing
