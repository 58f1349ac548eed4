"""The URL of a destination: that of the resource itself."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from redelivery.errors import InvalidURL
from redelivery.kit.address import quoted, redact, split_url

#: Characters of a URL at most: servers take 8000 (RFC 9110, section 4.1).
_MOST: Final = 8000
_PORTS: Final = {"http": 80, "https": 443}
#: Labels of a name, each of 63 characters at most (RFC 1035); a dot may end it.
_HOST: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,63}(?:\.|\Z))+")
_NUMBERS: Final = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_LONGEST_HOST: Final = 253
_TARGET: Final = re.compile(r"[\x21-\x7e]*")
_EXAMPLE: Final = "it is written 'https://example.org/orders'"


def is_host(host: str) -> bool:
    """Return whether a connection can be made to a host of this name: an address of IPv4 or IPv6, or a name."""
    if ":" in host or _NUMBERS.fullmatch(host):
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return "%" not in host
    return len(host) <= _LONGEST_HOST and _HOST.fullmatch(host) is not None


@dataclass(frozen=True, slots=True)
class Address:
    """One resource that events are posted to.

    Attributes:
        scheme: `http` or `https`.
        host, port: in lower case; the scheme's own port if the URL names none.
        target: path and query, as they are sent.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def authority(self) -> str:
        """Host and port, as the header `Host` has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Its URL without path and query, which may be a webhook's secret: what errors show."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """Its URL, always in the same form."""
        return self.origin + self.target

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL.

        Raises:
            InvalidURL: no host, a user or password, a fragment, or characters that a request cannot have.
        """
        parts = split_url(url)
        shown = f"http: {quoted(redact(url))}"
        scheme = parts.scheme.lower()
        if parts.username is not None or parts.password is not None or "@" in parts.netloc:
            raise InvalidURL(f"{shown} holds a user; give the credentials as http.token, by reference; {_EXAMPLE}")
        if "#" in url:
            raise InvalidURL(f"{shown} holds a fragment, which is never sent; {_EXAMPLE}")
        host = parts.hostname or ""
        if scheme not in _PORTS or not is_host(host):
            raise InvalidURL(f"{shown}: its host is not one that a request can have; {_EXAMPLE}")
        # `urlsplit` drops line breaks and tabs in silence
        if not _TARGET.fullmatch(url) or "\\" in url:
            raise InvalidURL(f"{shown} holds a character that a URL cannot have: write it as %20 or the like")
        if len(url) > _MOST:
            raise InvalidURL(f"{shown} is longer than {_MOST} characters")
        if parts.port == 0:
            raise InvalidURL(f"{shown}: no server has the port 0")
        query = f"?{parts.query}" if parts.query else ""
        return cls(scheme, host.lower(), parts.port or _PORTS[scheme], (parts.path or "/") + query)
