"""A connection to a server: commands are written, and each answer goes to whoever waits for it.

All answers come by one subscription of ours, `<inbox>.*`, whose last token names the request. A pulled message comes by
it too, but under its own subject: only the answers that end a pull are under the request's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import secrets
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from redelivery.kit.asyncio_bridge import LoopThread
from redelivery.kit.options import guard_loggers
from redelivery_nats.address import Address
from redelivery_nats.client.nats_private import Client, Nkey, credentials_in
from redelivery_nats.errors import TABLE, ApiError, DeniedError, ForeignError, OtherStreamError, StatusError
from redelivery_nats.options import Settings

#: What is told of a request: the payload of its answer, or an error, and what was given with it.
OnAnswer = Callable[[bytes | Exception, Any, Any], None]
#: What a pulled message is given to: subject, subject of its acknowledgement, payload, headers.
OnDelivery = Callable[[bytes, bytes, bytes, bytes | None], None]

_PING: Final = 20

guard_loggers("nats")


class Connection(LoopThread):
    """One connection, to any of the servers, which never comes back once it is lost. Any thread may use it.

    Args:
        address: of the servers, one of which it is made to.
        settings: of the client.
        place: for errors.
        on_delivery: called in the loop with each pulled message.
        on_lost: called in the loop, once, when it has ended otherwise than by `close`.
    """

    def __init__(
        self,
        address: Address,
        settings: Settings,
        place: str,
        *,
        on_delivery: OnDelivery | None = None,
        on_lost: Callable[[Exception], None] | None = None,
    ) -> None:
        super().__init__("nats", place)
        self._address, self._settings = address, settings
        self._on_delivery, self._on_lost = on_delivery, on_lost
        self.inbox = f"{settings.inbox_prefix}.{secrets.token_hex(11)}."
        self._inbox = self.inbox.encode()
        self._waiting: dict[bytes, tuple[OnAnswer, str, Any, Any]] = {}
        self._numbers = itertools.count(1)
        self._client: Client | None = None
        self._error: Exception | None = None
        self._unanswered: DeniedError | None = None
        self.lost: Exception | None = None

    def open(self, within: float) -> None:
        """Connect, within so many seconds and the client's own time for each server. Raises BrokerError."""
        with TABLE.while_doing(self.doing("connecting to"), safe=True):
            try:
                self.run("connecting to", self._connect, within)
            except Exception as error:
                # The client says only that no server answers; the last one's own error says why.
                raise self._error or error from error

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server said of itself: its version, its largest payload."""
        return {} if self._client is None else self._client.server

    def expect(self, on_answer: OnAnswer, subject: str, one: Any = None, other: Any = None) -> str:
        """Return the subject for the answer to a request; `on_answer` is called in the loop with it, `one` and `other`.

        `subject` is that of the request: a denial names it.
        """
        number = b"%d" % next(self._numbers)
        self._waiting[number] = (on_answer, subject, one, other)
        if self._unanswered is not None and self._waiting.pop(number, None) is not None:
            self.call(on_answer, self._unanswered, one, other)
        return f"{self.inbox}{number.decode()}"

    def forget(self, reply: str) -> None:
        """Wait no longer for an answer."""
        self._waiting.pop(reply[len(self.inbox) :].encode(), None)

    def forget_if(self, is_over: Callable[[Any], bool]) -> None:
        """Wait no longer for the answers whose `one` is over."""
        for number, (_, _, one, _) in list(self._waiting.items()):
            if is_over(one):
                self._waiting.pop(number, None)

    def write(self, data: bytes) -> None:
        """Write whole commands soon; nothing once it is lost or closed."""
        if self._client is not None:
            self.call(self._client.write, data)

    async def _connect(self) -> None:
        """Try one server after the other: nats-py stays with one that takes a connection and says nothing."""
        servers = self._address.servers
        random.shuffle(servers)
        seconds = self._settings.connect_timeout
        for server in servers:
            self._error = None
            try:
                await asyncio.wait_for(self._connect_to(server), seconds)
                break
            except Exception as error:
                if isinstance(error, TimeoutError):
                    self._error = TimeoutError(f"no answer within {seconds:g} s")
                told = self._error
                if self._client is not None:
                    await self._client.drop()
                self._error = told  # closing may fail too, and says so
                if server == servers[-1]:
                    raise
        self._error = None

    async def _connect_to(self, server: str) -> None:
        settings = self._settings
        client = Client(self._message, needs_tls=settings.is_tls)
        given: dict[str, Any] = {"user": settings.user, "password": settings.password, "token": settings.token}
        if settings.nkey_secret is not None:
            client.log_in_with(settings.nkey_secret)
            given["signature_cb"] = Nkey(settings.nkey_secret).signed
        if settings.credentials_secret is not None:
            jwt, seed = credentials_in(settings.credentials_secret)
            given |= {"signature_cb": Nkey(seed).signed, "user_jwt_cb": jwt.encode}
        if settings.is_tls:
            given |= {"tls": _tls(settings), "tls_hostname": settings.tls_hostname}
        self._client = client
        await client.connect(
            server,
            name="redelivery",
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=settings.connect_timeout,  # type: ignore[arg-type]
            ping_interval=_PING,
            error_cb=self._failed,
            closed_cb=self._ended,
            **{name: value for name, value in given.items() if value is not None},
        )
        await client.subscribe(f"{self.inbox}*")

    def _message(self, subject: bytes, reply: bytes, payload: bytes, headers: bytes | None) -> None:
        if not subject.startswith(self._inbox):
            if self._on_delivery is not None:
                self._on_delivery(subject, reply, payload, headers)
            return
        waiting = self._waiting.pop(subject[len(self._inbox) :], None)
        if waiting is not None:
            on_answer, _, one, other = waiting
            on_answer(payload if headers is None else _answer(headers, payload), one, other)

    async def _failed(self, error: Exception) -> None:
        """Note an error that the client reports. A denial says which subject, quoted as in Go."""
        self._error = error
        if self._client is None or "permissions violation" not in str(error):
            return
        text = self._client.said.removeprefix("-ERR ").strip("'")
        denied = DeniedError(text)
        what, _, subject = text.partition(' to "')
        no_answers = what.endswith("Subscription")
        if no_answers:
            self._unanswered = denied
        for number, (on_answer, asked, one, other) in list(self._waiting.items()):
            same = no_answers or subject.startswith(asked.replace("\\", "\\\\").replace('"', '\\"') + '"')
            if same and number in self._waiting:
                del self._waiting[number]
                on_answer(denied, one, other)

    async def _ended(self) -> None:
        error = (self._client and self._client.last_error) or self._error or ConnectionResetError("it was closed")
        self.lost = error
        waiting, self._waiting = self._waiting, {}
        if self._on_lost is not None and not self.is_closed:
            self._on_lost(error)
        for on_answer, _, one, other in waiting.values():
            on_answer(error, one, other)

    async def _close_client(self) -> None:
        if self._client is not None:
            await self._client.close()


def command(subject: str, reply: str, payload: bytes, block: bytes = b"") -> bytes:
    """Return the command that sends a message with its block of headers, if it has one."""
    head = f"{subject} {reply} ".encode()
    if not block:
        return b"PUB %b%d\r\n%b\r\n" % (head, len(payload), payload)
    return b"HPUB %b%d %d\r\n%b%b\r\n" % (head, len(block), len(block) + len(payload), block, payload)


def payload_of(answer: bytes | Exception) -> bytes:
    """Return the payload of an answer. Raises the error that stands for it."""
    if isinstance(answer, Exception):
        raise answer.with_traceback(None)  # one error stands for all that a lost connection leaves unanswered
    return answer


def answered(answer: bytes | Exception) -> dict[str, Any]:
    """Return the members of an answer of JetStream. Raises ApiError, ForeignError, or what stands for the answer."""
    payload = payload_of(answer)
    try:
        found = json.loads(payload)
        error = found.get("error")
        is_error = error is not None and isinstance(error["err_code"], int)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise ForeignError("something else than JetStream has answered") from None
    if is_error:
        raise ApiError(error)
    return dict(found)


def stored(answer: bytes | Exception, stream: str | None = None) -> bool:
    """Return whether the stream that confirms a message had it already.

    Raises as `answered` does; OtherStreamError if it is not this stream.
    """
    found = answered(answer)
    if not isinstance(found.get("stream"), str) or not isinstance(found.get("seq"), int):
        raise ForeignError("something else than a stream has answered")
    if stream not in {None, found["stream"]}:
        raise OtherStreamError(f"the stream {found['stream']!r} has taken it, and not {stream!r}")
    return bool(found.get("duplicate"))


def _answer(headers: bytes, payload: bytes) -> bytes | Exception:
    """Return the payload; where the first line of the headers holds a status, that."""
    words = headers.partition(b"\r\n")[0].split(b" ", 2)
    if len(words) == 1 or not words[1].isdigit():
        return payload
    text = words[2].decode("utf-8", "replace") if len(words) > 2 else ""  # noqa: PLR2004 - a description
    return StatusError(int(words[1]), text or "no responders")


def _tls(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.tls_ca)
    if settings.tls_cert is not None:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    return context
