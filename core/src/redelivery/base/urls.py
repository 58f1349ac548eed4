"""URLs and names that people write: schemes, and the nearest known name. Secrets are in `secrets.py`."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

from redelivery.base.secrets import (
    REDACTED,
    holds_secret,
    is_reference,
    redact,
    redact_options,
    redact_url,
    refuse_password,
    resolve_secret,
    resolve_secrets,
)
from redelivery.errors import InvalidURL, UnknownOption

__all__ = [
    "REDACTED",
    "has_scheme",
    "holds_secret",
    "is_local",
    "is_reference",
    "nearest",
    "quoted",
    "redact",
    "redact_options",
    "redact_url",
    "refuse_password",
    "resolve_secret",
    "resolve_secrets",
    "scheme_of",
    "split_url",
    "unknown",
]

_HOSTS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*:)//(?P<hosts>[^/?#]*)(?P<rest>.*)", re.DOTALL)
#: Characters of a URL that `urlsplit` leaves out.
_IGNORED = dict.fromkeys(map(ord, "\t\r\n"))
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")


def scheme_of(url: str) -> str:
    """Return the lower-case scheme of a URL.

    Raises:
        InvalidURL: it has no scheme; the message shows an example.
    """
    match = _SCHEME.match(url)
    if match is None:
        msg = f"not a destination URL: {redact_url(url)!r}; it starts with a scheme, as in 'sqlite:orders.db'"
        raise InvalidURL(msg)
    return match.group(1).lower()


def has_scheme(url: str) -> bool:
    """Whether a text begins like a URL; a bare name of a queue or topic does not."""
    return _SCHEME.match(url) is not None


def split_url(url: str, *, several_hosts: bool = False) -> SplitResult:
    """Split a URL by `urlsplit`, with a clear error in place of Python's own.

    Args:
        url: what a user wrote.
        several_hosts: the URL may list several hosts, separated by commas; then its port is not checked.

    Raises:
        InvalidURL: it does not parse. The URL is shown redacted.
    """
    try:
        parts = _split_with_hosts(url) if several_hosts else urlsplit(url)
        _ = None if several_hosts else parts.port
    except ValueError as error:
        msg = f"not a valid URL: {redact_url(url)!r}: {redact(str(error))}"
        raise InvalidURL(msg) from None  # the original text may hold a password
    return parts


def _split_with_hosts(url: str) -> SplitResult:
    """Split a URL and check each of its hosts alone.

    With the fix of CVE-2025-0938 `urlsplit` refuses two addresses in brackets: from 3.11.12, 3.12.9, 3.13.2 and 3.14 on
    by its record; Debian put it into its 3.11.2. Seen there and on 3.14.7; 3.11.7, 3.12.1 and 3.13.0 accept them.
    """
    match = _HOSTS.match(url.translate(_IGNORED))
    if match is None:
        return urlsplit(url)
    for host in match["hosts"].split(","):
        urlsplit(f"//{host}")
    return urlsplit(f"{match['scheme']}//-{match['rest']}")._replace(netloc=match["hosts"])


def is_local(host: str) -> bool:
    """Whether a host is this machine itself: a loopback address, or `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost")


def quoted(text: str, most: int = 200) -> str:
    """Return a name as an error quotes it: its `repr`, of a long one the beginning. `most` is in characters."""
    return repr(text) if len(text) <= most else f"{text[:most]!r}... ({len(text)} characters)"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to `name`, without regard to case; None where nothing is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def unknown(what: str, name: str, known: Iterable[str]) -> UnknownOption:
    """Return the error for an unknown name: it gives the nearest known name, or else lists them."""
    known = sorted(known)
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else f"known are: {', '.join(known) or 'none'}"
    return UnknownOption(f"unknown {what} {name!r}; {hint}")
