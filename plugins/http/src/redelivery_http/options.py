"""The client options."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from redelivery.errors import ConfigurationError
from redelivery.kit.options import Options, integer, option, seconds, secret, text
from redelivery_http.address import is_host

#: Bytes of all headers of a request: servers take 8 KiB at least.
HEADER_BYTES: Final = 8192
#: A message's own headers: servers take 100 at least, and a request has some more.
HEADERS: Final = 80
#: Events of a request at most, and their bytes. A larger event is sent alone.
MOST_EVENTS: Final = 10_000
BATCH_BYTES: Final = 1 << 20

_MEDIA_TYPE: Final = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:[;= \"][\x20-\x7e]*)?", re.ASCII)
_PROXY: Final = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/?")


def _media_type(given: str) -> str:
    if not _MEDIA_TYPE.fullmatch(given):
        raise ValueError(given)
    return given


def _proxy(given: str) -> str:
    if not _PROXY.fullmatch(given):
        raise ValueError
    parts = urlsplit(given)
    if not is_host(parts.hostname or "") or parts.port == 0:  # a port that is too large raises ValueError
        raise ValueError
    return given


def _certificates(given: str) -> str:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=given)
    except (OSError, TypeError) as error:  # the latter: it is not ASCII
        raise ValueError(given) from error
    return given


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="http"):
    """The values of the client options."""

    audience: str | None = text("audience that the JWT of http.token must have; without it any token is sent")
    batch: int = integer(1, "events per request; more than 1: in CloudEvents' batched mode", least=1, most=MOST_EVENTS)
    concurrency: int = integer(16, "requests in flight at once, each in its own thread", least=1, most=256)
    connect_timeout: float = seconds(5, "seconds to wait for a connection", least=0.1, most=60)
    content_type: str | None = option(
        None,
        "content type of rows without one; by default they are sent without one",
        _media_type,
        "a media type such as application/json",
    )
    max_header_bytes: int = integer(HEADER_BYTES, "bytes of headers that the server accepts", least=1024, most=1 << 20)
    proxy: str | None = option(
        None,
        "proxy, as in http://proxy:3128; the environment's are not used",
        _proxy,
        "a URL without a user",
        secret=True,
    )
    ssl_ca: str | None = text("file of authorities to trust", name="ssl.ca", shown="the system's")
    ssl_ca_pem: str | None = option(
        None,
        "certificates of authorities to trust beside those of http.ssl.ca, or the system's",
        _certificates,
        "PEM text with a certificate",
        name="ssl.ca.pem",
    )
    ssl_cert: str | None = text("file of our certificate, if the server demands one", name="ssl.cert")
    ssl_key: str | None = text("file of its private key, if it is not in the same file", name="ssl.key")
    token: str | None = secret("bearer token; the file of a file: reference is read again when it may have changed")

    def __post_init__(self) -> None:
        """Check what one option alone cannot show."""
        if self.ssl_key is not None and self.ssl_cert is None:
            raise ConfigurationError("http.ssl.key requires http.ssl.cert; give both, or the certificate alone")
        if self.audience is not None and self.token is None:
            raise ConfigurationError("http.audience says what http.token must be for; give both, or the token alone")

    @property
    def has_tls(self) -> bool:
        """Whether an option concerns TLS."""
        return any((self.ssl_ca, self.ssl_ca_pem, self.ssl_cert))
