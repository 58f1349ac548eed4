"""Every error of the server and its client as one of redelivery's: the only module that knows their codes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Any, Final

from nats import errors as nats

from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable, Throttled
from redelivery.kit.errors import ClientError, Code, ErrorTable, Rule


class ApiError(Exception):
    """The server answered with an error: `err_code` is JetStream's, `code` resembles one of HTTP."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("description") or ""))
        self.code = error.get("code")
        self.err_code = error.get("err_code")

    @property
    def is_missing(self) -> bool:
        """Whether it says that a message is not, or not any more, in its stream."""
        failed = self.err_code == _DELETE_FAILED  # for whatever reason
        return self.err_code in _NO_MESSAGE or (failed and str(self) in _DELETED)


class StatusError(Exception):
    """The server answered without a message: 503 is nobody's subject, 404, 408 and 409 end a pull."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ForeignError(Exception):
    """An answer that JetStream did not write: an application listens on the same subject."""


class OtherStreamError(Exception):
    """A stream has stored the message that is not the one which the URL, or its dead letters, name."""


class DeniedError(Exception):
    """The server said that this user may not publish to a subject, or subscribe to one."""


_LATER: Final = Rule(Retriable, Code.UNAVAILABLE, "nothing was done")
_UNSURE: Final = Rule(Ambiguous, Code.UNAVAILABLE, "it may have been done or not")
_LOST: Final = Rule(Ambiguous, Code.CONNECTION_LOST, "it may have been done or not")
_LATE: Final = Rule(Ambiguous, Code.DEADLINE_EXCEEDED, "it may have been done or not")
_SLOW: Final = Rule(Throttled, Code.THROTTLED, "the server asks for fewer requests; nothing was done")
_FULL: Final = Rule(Retriable, Code.FULL, "the stream or its account is full; nothing was stored")
_NO_STREAM: Final = Rule(
    Fatal,
    Code.NO_SUCH_DESTINATION,
    "no such stream or consumer exists: provision it, or correct the URL",
    about_target=True,
)
#: Also where nobody answers to the API.
DISABLED: Final = Rule(Fatal, Code.UNSUPPORTED, "enable JetStream on the server and for this account")
_DENIED: Final = Rule(Fatal, Code.NOT_AUTHORIZED, "allow it in this user's permissions", about_target=True)
_LOGIN: Final = Rule(
    Fatal,
    Code.NOT_AUTHENTICATED,
    "the server refuses this login: correct nats.user and nats.password, or nats.token, or the key",
)
_TOO_LARGE: Final = Rule(Permanent, Code.TOO_LARGE, "the server, or the stream's max_msg_size, refuses its size")
_MESSAGE: Final = Rule(Permanent, Code.INVALID_MESSAGE, "the server does not accept this message")
_REFUSED: Final = Rule(Fatal, Code.REJECTED, "the server refuses the request")
_CONFLICT: Final = Rule(Fatal, Code.CONFLICT, "another stream or consumer has this name or these subjects")
_SEALED: Final = Rule(Fatal, Code.REJECTED, "the stream takes no messages, or none is removed from it")
_CLUSTER: Final = Rule(Fatal, Code.MISCONFIGURED, "nats.replicas needs a cluster of as many servers")
_TLS: Final = Rule(Fatal, Code.TLS_FAILED, "correct the certificates, or set nats.tls_ca")

#: By rule: the codes of JetStream, as `errors.json` of the server lists them.
_CODES: Final[Mapping[Rule, tuple[int, ...]]] = {
    _LATER: (10004, 10007, 10008, 10009, 10036, 10075, 10118, 10119),
    _FULL: (10002, 10023, 10028, 10047, 10077, 10122),
    _SLOW: (10167,),
    _NO_STREAM: (10014, 10059),
    DISABLED: (10035, 10039, 10076, 10120),
    _TOO_LARGE: (10054, 10097),
    _MESSAGE: (10060, 10063, 10070, 10071, 10098, 10111),
    _CONFLICT: (10013, 10058, 10065, 10099, 10100, 10105, 10148),
    _SEALED: (10109,),
    _CLUSTER: (10005, 10074),
}
#: By the code that resembles HTTP's, for JetStream's codes that are not in this table.
_STATUSES: Final[Mapping[int, Rule]] = {
    400: _REFUSED,
    404: _NO_STREAM,
    408: _LATE,
    409: _LATER,
    429: _SLOW,
    500: _UNSURE,
    503: _NO_STREAM,
}
#: The status of a subject that nobody listens to.
NOBODY: Final = 503
#: What is said of a message that is not in its stream; and where it was to be removed, by servers 2.9 to 2.15.
_NO_MESSAGE: Final = frozenset({10037, 10043})
_DELETE_FAILED: Final = 10057
_DELETED: Final = ("no message found", "stream store EOF", "deleted message")

_BY_CLASS: Final[Mapping[type[BaseException], Rule]] = {
    ApiError: _REFUSED,
    StatusError: _LATER,
    OtherStreamError: Rule(Fatal, Code.MISCONFIGURED, "provision the stream with its subject, or correct the URL"),
    ForeignError: Rule(Ambiguous, Code.UNCONFIRMED, "a stream may have stored it or not; use a subject of its own"),
    DeniedError: _DENIED,
    nats.Error: _LOST,  # also what is not the protocol: half of a line, nothing where the server greets
    nats.AuthorizationError: _LOGIN,
    nats.NoServersError: Rule(Retriable, Code.CONNECTION_LOST, "no server answers; nothing was sent"),
    nats.InvalidUserCredentialsError: _LOGIN,
    nats.SecureConnRequiredError: Rule(Fatal, Code.TLS_FAILED, "set nats.tls"),
    nats.SecureConnWantedError: Rule(Fatal, Code.TLS_FAILED, "this server has no TLS; enable it, or unset nats.tls"),
    nats.TimeoutError: _LATE,
    asyncio.TimeoutError: _LATE,
    asyncio.IncompleteReadError: _LOST,
    ssl.SSLError: _TLS,
    OSError: _LOST,
}


def _describe(error: Any) -> ClientError:
    if isinstance(error, ApiError):
        name = None if error.err_code is None else str(error.err_code)
        return ClientError(str(error), codes=(error.err_code, error.code), name=name)
    if isinstance(error, StatusError):
        return ClientError(str(error), codes=(error.status,), name=str(error.status))
    return ClientError(str(error))


TABLE: Final = ErrorTable(
    "nats",
    by_class=_BY_CLASS,
    by_code={**_STATUSES, **{code: rule for rule, codes in _CODES.items() for code in codes}},
    by_text=[
        (10077, "message size exceeds", _TOO_LARGE),
        (409, "Exceeded MaxRequest", Rule(Fatal, Code.MISCONFIGURED, "the consumer's limits of a pull are too small")),
        (None, "uthorization violation", _LOGIN),
        (None, "uthorization Violation", _LOGIN),
        (None, "uthentication expired", _LOGIN),
        (None, "connections exceeded", Rule(Retriable, Code.FULL, "the server has too many connections")),
        (None, "maximum payload", _TOO_LARGE),
        (None, "secure connection", Rule(Fatal, Code.TLS_FAILED, "set nats.tls")),
    ],
    describe=_describe,
)
