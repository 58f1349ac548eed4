"""Bearer tokens: read again where they rotate, and compared with the audience that they must be for."""

from __future__ import annotations

import base64
import binascii
import json
import re
import time
from typing import Any, Final

from redelivery.errors import BrokerError, ConfigurationError, Fatal
from redelivery.kit.errors import Code, quoted
from redelivery.kit.options import renewed

#: Seconds after which a token's file is read again. Kubernetes renews a projected token long before its end.
FRESH: Final = 10.0
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

    Args:
        token: its value now; if it comes from a file, it is read again.
        audience: what it must be for; None: it is not looked into.
    """

    def __init__(self, token: str | None, audience: str | None) -> None:
        self._token = token
        self._audience = audience
        self._until = 0.0
        self._header = b""

    def header(self) -> bytes:
        """Return the value of the header `Authorization`; empty without a token.

        Raises:
            Fatal: it cannot be read, has expired, or is for another audience.
        """
        if self._token is not None and time.monotonic() >= self._until:
            self._header = b"Bearer " + self._read(self._token).encode("ascii")
            self._until = time.monotonic() + FRESH
        return self._header

    def _read(self, given: str) -> str:
        try:
            token = renewed(given)
            check_token(token)
        except ConfigurationError as error:
            raise _refused(f"the token cannot be read again: {error}") from error
        if self._audience is not None:
            self._check(token, self._audience)
        return token

    @staticmethod
    def _check(token: str, wanted: str) -> None:
        claims = _claims(token)
        if claims is None:
            raise _refused("http.audience is set, but http.token is not a JWT, so that nobody can tell its audience")
        audiences = claims.get("aud")
        audiences = audiences if isinstance(audiences, list) else [audiences]
        if wanted not in audiences:
            found = ", ".join(quoted(str(each)) for each in audiences[:3])
            raise _refused(f"the token is for the audience {found}, not {wanted!r} (http.audience)")
        end = claims.get("exp")
        if isinstance(end, int | float) and end <= time.time():
            raise _refused(f"the token expired {time.time() - max(0, end):.0f} s ago, and its file was not renewed")


def _claims(token: str) -> dict[str, Any] | None:
    """Return what a JWT says of itself, unverified: the server verifies it. None: it is not a JWT."""
    parts = token.split(".")
    try:
        found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (IndexError, ValueError, binascii.Error, RecursionError):
        return None
    return found if isinstance(found, dict) and len(parts) == 3 else None  # noqa: PLR2004 - header, claims, signature


def _refused(why: str) -> BrokerError:
    return Fatal(f"http: {why}; request another token", code=Code.NOT_AUTHENTICATED)
