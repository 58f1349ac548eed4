"""Every answer and error of HTTP as one of redelivery's: the only module that knows what a status means.

Knative's eventing tries 404, 408, 409, 429 and 5xx again, and gives up at any other (`kncloudevents.SelectiveRetry`).
So does this table, with the difference that an error which no event can pass is fatal (docs/decisions/0063).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx2

from redelivery.errors import Ambiguous, Fatal, Permanent, Retriable, Throttled, Unattributed
from redelivery.kit.errors import ClientError, Code, ErrorTable, Rule
from redelivery_http.client.connection import Answer

_PERHAPS: Final = "it may have been taken or not"
_NOTHING: Final = "nothing was taken"
_EVENT: Final = "the server does not take this event"

_FAILED: Final = Rule(Ambiguous, Code.UNAVAILABLE, f"the server failed: {_PERHAPS}")
_LOST: Final = Rule(Ambiguous, Code.CONNECTION_LOST, f"the answer was lost: {_PERHAPS}")
_LATE: Final = Rule(Ambiguous, Code.DEADLINE_EXCEEDED, f"no answer came in time: {_PERHAPS}")
_UNREACHED: Final = Rule(Retriable, Code.CONNECTION_LOST, "nothing was sent")
_LATER: Final = Rule(Retriable, Code.UNAVAILABLE, _NOTHING)
_SLOW: Final = Rule(Throttled, Code.THROTTLED, f"the server asks for fewer requests; {_NOTHING}")
_INVALID: Final = Rule(Unattributed, Code.INVALID_MESSAGE, _EVENT)
_LARGE: Final = Rule(Unattributed, Code.TOO_LARGE, "the server does not take so large an event")
_REJECTED: Final = Rule(Unattributed, Code.REJECTED, _EVENT)
_REDIRECTED: Final = Rule(
    Fatal, Code.MISCONFIGURED, "redirects are not followed, because they may lead anywhere: correct the URL"
)
_TLS: Final = Rule(Fatal, Code.TLS_FAILED, "set http.ssl.ca, http.ssl.cert and http.ssl.key, or correct the URL")
_OURS: Final = Rule(Permanent, Code.INVALID_MESSAGE, "the client refuses to send it; nothing was sent")

#: By status; "4xx" and the like for the others.
STATUSES: Final[Mapping[int | str, Rule]] = {
    400: _INVALID,
    401: Rule(Fatal, Code.NOT_AUTHENTICATED, "set http.token, or request another token"),
    403: Rule(Fatal, Code.NOT_AUTHORIZED, "allow this sender in the policy of the server"),
    404: Rule(
        Retriable, Code.NO_SUCH_DESTINATION, "nothing serves this path yet; if nothing ever will, correct the URL"
    ),
    405: Rule(Fatal, Code.MISCONFIGURED, "nothing can be posted here: correct the URL"),
    407: Rule(Fatal, Code.NOT_AUTHENTICATED, "the proxy demands a login, which this plugin does not have"),
    408: _LATER,  # the server did not get the whole request in time
    409: Rule(Ambiguous, Code.CONFLICT, "it may be at work on the event already"),
    410: Rule(Fatal, Code.NO_SUCH_DESTINATION, "it is gone for good: correct the URL"),
    413: _LARGE,
    414: Rule(Fatal, Code.MISCONFIGURED, "the server does not take so long a URL"),
    415: Rule(Unattributed, Code.INVALID_MESSAGE, "the server does not take this content type or mode"),
    421: _LATER,
    422: _INVALID,
    425: _LATER,
    426: Rule(Fatal, Code.MISCONFIGURED, "the server demands another protocol: correct the URL"),
    429: _SLOW,
    431: _LARGE,
    501: _LATER,
    503: Rule(Throttled, Code.UNAVAILABLE, _NOTHING),
    505: _LATER,
    507: Rule(Retriable, Code.FULL, _NOTHING),
    511: Rule(Retriable, Code.NOT_AUTHENTICATED, f"the network demands a login; {_NOTHING}"),
    "3xx": _REDIRECTED,
    "4xx": _REJECTED,
    "5xx": _FAILED,
}

#: By class of httpx's errors, and what the TLS settings raise.
BY_CLASS: Final[Mapping[type[BaseException], Rule]] = {
    # before anything was sent
    httpx2.ConnectError: _UNREACHED,
    httpx2.ConnectTimeout: _UNREACHED,
    httpx2.PoolTimeout: _UNREACHED,
    httpx2.ProxyError: Rule(Retriable, Code.UNAVAILABLE, "the proxy does not let it through; nothing was sent"),
    # after something was sent, or at an unknown time
    httpx2.TransportError: _LOST,
    httpx2.TimeoutException: _LATE,
    # never sent
    httpx2.LocalProtocolError: _OURS,
    httpx2.UnsupportedProtocol: _OURS,
    ssl.SSLError: _TLS,
    OSError: Rule(Fatal, Code.MISCONFIGURED, "correct http.ssl.ca, http.ssl.cert and http.ssl.key"),
}


def _describe(error: Any) -> ClientError:
    if isinstance(error, Answer):
        paused = error.retry_after if error.status in {429, 503} else 0.0  # Knative heeds it for these two
        codes = (error.status, f"{min(error.status // 100, 5)}xx")  # beyond 599: as RFC 9110, section 15, wants it
        return ClientError(error.text, codes=codes, name=str(error.status), retry_after=paused)
    if isinstance(error, httpx2.ProxyError):  # its text begins with the proxy's status
        return ClientError(str(error), codes=(407,) if str(error).startswith("407") else (), name="ProxyError")
    # httpx has no class for TLS; OpenSSL's text begins so, also where the server ends the handshake
    is_tls = "[SSL: " in str(error) and "EOF" not in str(error)
    return ClientError(str(error), codes=("tls",) if is_tls else (), name=type(error).__name__)


TABLE: Final = ErrorTable(
    "http",
    by_class=BY_CLASS,
    by_code={**STATUSES, "tls": _TLS},
    describe=_describe,
)
