"""Bearer tokens: read again where they rotate, and compared with the audience that they must be for."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import threading
import time
from typing import Any, Final

from redelivery.errors import ConfigurationError, Fatal, Retriable
from redelivery.kit.errors import Code, quoted
from redelivery.kit.options import renewed

#: Seconds after which a token's file is read again. Kubernetes renews a projected token long before its end.
FRESH: Final = 10.0
#: Seconds until a file that holds no good token is read again, and for which that is no reason to end the job.
AGAIN: Final = 1.0
PATIENCE: Final = 60.0
_VISIBLE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def check_token(token: str | None) -> None:
    """Refuse a token that no header can hold.

    Raises:
        ConfigurationError: the text does not show it.
    """
    if token is not None and not _VISIBLE.fullmatch(token):
        raise ConfigurationError("http.token holds characters that a header cannot have, or spaces around it")


class Token:
    """The token of one sender. Several threads may ask for it.

    Kubernetes, and others who rotate a file, may leave it away, empty or expired for a moment. The former token is sent
    then; where it is of no use any more, the error is retriable for `PATIENCE`, and fatal from then on.

    Args:
        token: its value now; if it comes from a file, it is read again.
        audience: what it must be for; None: it is not looked into.
    """

    def __init__(self, token: str | None, audience: str | None) -> None:
        self._given, self._audience = token, audience
        self._lock = threading.Lock()
        self._header = b""
        self._ends = math.inf  # as the token says, in seconds since 1970
        self._until = 0.0  # when it is read again; this and the next in monotonic seconds
        self._bad_since: float | None = None

    def header(self) -> bytes:
        """Return the value of the header `Authorization`; empty without a token.

        Raises:
            Retriable: its file is away, or has expired, for a moment.
            Fatal: it cannot be read, has expired, or is for another audience.
        """
        if self._given is None:
            return b""
        with self._lock:
            if not self._header or time.monotonic() >= self._until or time.time() >= self._ends:
                self._read(self._given, keep=True)
            return self._header

    def instead_of(self, refused: bytes) -> bytes:
        """Return the header's value since the server has refused this one; empty: there is no other.

        Raises:
            Retriable, Fatal: as `header`.
        """
        if self._given is None:
            return b""
        with self._lock:
            if self._header == refused:  # else another thread has read it
                self._read(self._given, keep=False)
            return b"" if self._header == refused else self._header

    def _read(self, given: str, *, keep: bool) -> None:
        """Read the token again; where that fails, keep the former one if it may still be good."""
        now = time.monotonic()
        self._until = now + AGAIN
        token = None
        try:
            try:
                token = renewed(given)
                check_token(token)
            except ConfigurationError:
                if self._header:
                    raise
                token = given  # as it was when the broker was connected
            ends = math.inf if self._audience is None else _end(token, self._audience)
        except ConfigurationError as error:
            if keep and self._header and time.time() < self._ends:
                return
            self._bad_since = now if self._bad_since is None else self._bad_since
            waits = self._header and token is not given and now - self._bad_since < PATIENCE
            told = f"http: the token cannot be used: {error}; request another token"
            raise (Retriable if waits else Fatal)(told, code=Code.NOT_AUTHENTICATED) from error
        self._header, self._ends, self._bad_since = b"Bearer " + token.encode("ascii"), ends, None
        self._until = now + FRESH


def _end(token: str, wanted: str) -> float:
    """Return when a token ends, in seconds since 1970. Raises ConfigurationError: it has ended, or is not for this."""
    claims = _claims(token)
    if claims is None:
        raise ConfigurationError(
            "http.audience is set, but http.token is not a JWT, so that nobody can tell its audience"
        )
    audiences = claims.get("aud")
    audiences = audiences if isinstance(audiences, list) else [audiences]
    if wanted not in audiences:
        found = ", ".join(quoted(str(each)) for each in audiences[:3])
        raise ConfigurationError(f"it is for the audience {found}, not {wanted!r} (http.audience)")
    end = claims.get("exp")
    if not isinstance(end, int | float):
        return math.inf
    if end <= time.time():
        raise ConfigurationError(f"it expired {time.time() - max(0, end):.0f} s ago, and its file was not renewed")
    return end


def _claims(token: str) -> dict[str, Any] | None:
    """Return what a JWT says of itself, unverified: the server verifies it. None: it is not a JWT."""
    parts = token.split(".")
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError, binascii.Error, RecursionError):
        return None
    return found if isinstance(found, dict) and len(parts) == 3 else None  # noqa: PLR2004 - header, claims, signature
