"""Authorization: shared access keys, their claims, and tokens signed with them.

Tokens are neither stored nor shown in errors.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qs, quote_plus, unquote, urlsplit

Claim = Literal["Send", "Listen", "Manage"]
ALL: Final[frozenset[Claim]] = frozenset(("Send", "Listen", "Manage"))


class Unauthorized(Exception):
    """A token or a claim is not sufficient; the text says why, without the token."""


@dataclass(frozen=True, slots=True)
class Key:
    """A shared access policy of the namespace."""

    name: str
    secret: str = field(repr=False)
    claims: frozenset[Claim] = ALL


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a valid token: these claims, at and below a path ("" is the namespace), until a time."""

    path: str
    claims: frozenset[Claim]
    expires: float


def entity_path(address: str | None) -> str:
    """Return the entity of an address, without scheme, host and port."""
    address = address or ""
    path = urlsplit(address).path if "://" in address else address
    return unquote(path).strip("/")


def sign(resource: str, key: Key, expires: float) -> str:
    """Return a shared access signature."""
    named, until = quote_plus(resource), int(expires)
    signature = _signature(key, f"{named}\n{until}")
    return f"SharedAccessSignature sr={named}&sig={quote_plus(signature)}&se={until}&skn={quote_plus(key.name)}"


def _signature(key: Key, text: str) -> str:
    return base64.b64encode(hmac.new(key.secret.encode(), text.encode(), hashlib.sha256).digest()).decode()


def check_token(token: str, keys: Mapping[str, Key], now: float) -> Grant:
    """Return the rights of a shared access signature. Raises Unauthorized."""
    scheme, _, rest = token.partition(" ")
    found = {name: values[0] for name, values in parse_qs(rest).items()}
    if scheme != "SharedAccessSignature" or not {"sr", "sig", "se", "skn"} <= found.keys():
        raise Unauthorized("InvalidSignature: the token is not a shared access signature")
    key = keys.get(found["skn"])
    raw = dict(part.partition("=")[::2] for part in rest.split("&"))
    if key is None:
        raise Unauthorized("InvalidSignature: the token has an invalid signature")
    if not hmac.compare_digest(_signature(key, f"{raw['sr']}\n{raw['se']}"), found["sig"].replace(" ", "+")):
        raise Unauthorized("InvalidSignature: the token has an invalid signature")
    if not found["se"].isdecimal() or int(found["se"]) <= now:
        raise Unauthorized("ExpiredToken: the token is expired")
    return Grant(entity_path(found["sr"]).lower(), key.claims, float(found["se"]))


def allowed(grants: Iterable[Grant], path: str, claim: Claim, now: float) -> bool:
    """Return whether one of the grants includes this claim on this entity."""
    path = path.lower()
    return any(
        claim in grant.claims
        and grant.expires > now
        and (grant.path in ("", path) or path.startswith(f"{grant.path}/"))
        for grant in grants
    )
