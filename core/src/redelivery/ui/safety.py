"""Who may use the page: one browser of one person on this machine, and no other site in that browser.

Every request passes here first. It must be for this host's own address (a name that another DNS server points here is
refused), hold the session's cookie, and, where it changes anything, come from a page of ours with that session's token.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from html import escape
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redelivery.base.rendering import harmless
from redelivery.base.urls import redact
from redelivery.errors import RedeliveryError

#: Bytes of a form: a body that is edited, percent-encoded.
FORM_BYTES: Final = 6 * 1024 * 1024
#: Fields of a form or of a query.
FIELDS: Final = 1000
#: Bytes of a path and its query.
_TARGET_BYTES: Final = 16_384
#: The path at which the token of the start URL becomes a session.
START: Final = "/start"
STATIC: Final = "/static/"
#: The field of a form that holds the session's token.
CSRF: Final = "csrf"
#: Where the checked form of a request is in its scope.
FORM: Final = "redelivery.form"
SESSION: Final = "redelivery.session"

#: On every response. `no-referrer` has browsers send `Origin: null` with a form, so Sec-Fetch-Site decides then.
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), usb=()",
}

log = logging.getLogger("redelivery.ui")


class Session:
    """The one session of a page, and the token that begins it.

    Attributes:
        token: for the start URL; used once.
        csrf: for every form.
        cookie: the cookie's name; it has the port, as browsers keep one set of cookies for all ports of a host.
    """

    def __init__(self, port: int) -> None:
        self.token = secrets.token_urlsafe(32)
        self.csrf = secrets.token_urlsafe(32)
        self.cookie = f"redelivery-{port}"
        self._value = secrets.token_urlsafe(32)
        self._unused = True

    def begin(self, token: str) -> str | None:
        """Return the cookie's value for the start URL's token; None where it is another one, or was used before."""
        if not (self._unused and _same(token, self.token)):
            return None
        self._unused = False
        return self._value

    def knows(self, headers: Headers) -> bool:
        """Whether a request has the session's cookie."""
        if self._unused:
            return False
        # Other services of this host set cookies too, which no strict parser would pass over.
        pairs = (each.strip().partition("=") for line in headers.getlist("cookie") for each in line.split(";"))
        return any(name == self.cookie and _same(value, self._value) for name, _, value in pairs)


def _same(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that says nothing of where they differ."""
    digests = [hashlib.sha256(each.encode("utf-8", "replace")).digest() for each in (one, other)]
    return hmac.compare_digest(*digests)


class Refused(Exception):
    """A request is refused: the status, and one line for the person."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


class Safety:
    """The ASGI application around all others.

    Args:
        app: the application.
        session: whose cookie a request must have.
        port: where the page is served.
        page: makes a page of a status and one line.
    """

    def __init__(self, app: ASGIApp, session: Session, port: int, page: Callable[[int, str], Response]) -> None:
        self._app = app
        self._session = session
        self._hosts = frozenset(
            {f"127.0.0.1:{port}", f"localhost:{port}"} | ({"127.0.0.1", "localhost"} if port == 80 else set())  # noqa: PLR2004 - HTTP's own
        )
        self._page = page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        try:
            await self._checked(scope, receive, guarded)
        except Exception as error:  # noqa: BLE001 - never a trace on the page
            answer = self._failed(error)
            if not begun:
                await answer(scope, receive, guarded)

    def _failed(self, error: Exception) -> Response:
        """Return a page of one line."""
        if isinstance(error, Refused):
            return self._page(error.status, str(error))
        if isinstance(error, RedeliveryError):
            return self._page(502, one_line(error))
        log.error("the page failed: %s: %s", type(error).__name__, one_line(error))
        text = "The page itself failed; the terminal it was started in says how. This is a defect of the page."
        return self._page(500, text)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        self._check_host(headers)
        if scope["method"] not in {"GET", "HEAD", "POST"}:
            raise Refused(405, f"{harmless(scope['method'])[:20]} is not a method of this page.")
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > _TARGET_BYTES:
            raise Refused(414, "The address is too long.")
        if scope["path"] == START:
            await self._start(scope, receive, send)
            return
        if scope["path"].startswith(STATIC):
            await self._app(scope, receive, send)
            return
        if not self._session.knows(headers):
            await self._without_session(scope, headers)(scope, receive, send)
            return
        if scope["method"] == "POST":
            scope[FORM], receive = await self._form(headers, receive)
        scope[SESSION] = self._session
        await self._app(scope, receive, send)

    def _check_host(self, headers: Headers) -> None:
        """Refuse another host's name: its owner could have it point here, and then read what its page asks for."""
        given = headers.getlist("host")
        if len(given) != 1 or given[0].lower() not in self._hosts:
            raise Refused(421, f"This page answers only at {min(self._hosts)}; a tunnel must use the same port.")

    async def _start(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Exchange the start URL's token for the cookie.

        The answer is a page that goes on by itself, not a redirect: where the browser came from a file or another
        site, it would not send a SameSite=Strict cookie along with the redirected request.
        """
        if scope["method"] != "GET":
            raise Refused(405, "The start URL is opened, not sent to.")
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"), max_num_fields=10))
        value = self._session.begin(given.get("token", ""))
        if value is None:
            if self._session.knows(Headers(scope=scope)):
                await _onward("/")(scope, receive, send)
                return
            raise Refused(403, _USED)
        response = _onward("/")
        response.set_cookie(self._session.cookie, value, httponly=True, samesite="strict", path="/")
        await response(scope, receive, send)

    def _without_session(self, scope: Scope, headers: Headers) -> Response:
        """Answer a request without the cookie: a link from elsewhere is opened again, as from here.

        A browser does not send a SameSite=Strict cookie along a link on another site, as in a chat.
        """
        if (
            scope["method"] == "GET"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-site") == "cross-site"
        ):
            query = scope["query_string"].decode("latin-1")
            raw: bytes = scope.get("raw_path") or b"/"
            return _onward(raw.partition(b"?")[0].decode("latin-1") + (f"?{query}" if query else ""))
        return self._page(401, _UNKNOWN)

    async def _form(self, headers: Headers, receive: Receive) -> tuple[Sequence[tuple[str, str]], Receive]:
        """Return the checked form of a request that may change something."""
        self._check_origin(headers)
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/x-www-form-urlencoded":
            raise Refused(415, "A form of this page is URL-encoded.")
        body = await _body(headers, receive)
        try:
            form = parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS, errors="strict")
        except ValueError:
            raise Refused(400, "This is not a form of this page.") from None
        tokens = [value for name, value in form if name == CSRF]
        if len(tokens) != 1 or not _same(tokens[0], self._session.csrf):
            raise Refused(403, "The form is from an earlier start of the page; load it again and repeat.")

        given = False

        async def again() -> Message:
            nonlocal given
            if given:  # a streamed answer waits here for the browser to go away
                return await receive()
            given = True
            return {"type": "http.request", "body": b"", "more_body": False}

        return [(name, value) for name, value in form if name != CSRF], again

    def _check_origin(self, headers: Headers) -> None:
        """Refuse what another site has its page send. Browsers set both headers, and no page can."""
        host = headers["host"].lower()
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        named = origin not in {None, "null"}
        if (
            (named and origin != f"http://{host}")
            or (site is not None and site != "same-origin")
            or (not named and site is None)
        ):
            raise Refused(403, "The request comes from another site, so nothing was done.")


async def _body(headers: Headers, receive: Receive) -> bytes:
    too_large = Refused(413, f"A form has at most {FORM_BYTES // 1024 // 1024} MiB.")
    said = headers.get("content-length", "")
    if said.isdigit() and int(said[:20]) > FORM_BYTES:
        raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "The request ended early.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > FORM_BYTES:
            raise too_large
        if not message.get("more_body"):
            return b"".join(parts)


def one_line(error: BaseException) -> str:
    """Return an error as one harmless line without secrets."""
    return harmless(" ".join(redact(str(error)).split())) or type(error).__name__


def _onward(path: str) -> HTMLResponse:
    """Return a page that opens a path of ours, as a link of ours."""
    # "//host" and "/\host" would be another site's address.
    to = "/" + path.lstrip("/\\")
    return HTMLResponse(
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>redelivery</title>'
        f'<meta http-equiv="refresh" content="0;url={escape(to)}"><p><a href="{escape(to)}">Go on</a></p></html>'
    )


Handler = Callable[[Any], Awaitable[Response]]
_USED: Final = (
    "This start URL has been used, or is of an earlier start. Use the browser that opened it, or start `redelivery ui` "
    "again and open the URL that it prints."
)
_UNKNOWN: Final = (
    "This browser has no session here. Open the URL that `redelivery ui` printed in its terminal; where that was used "
    "already, start it again."
)
