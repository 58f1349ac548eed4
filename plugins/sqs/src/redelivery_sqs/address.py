"""The address of a queue, written as its name, its queue URL or its ARN."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlencode, urlsplit, urlunsplit

from redelivery.errors import InvalidURL
from redelivery.kit.address import redact, split_url, url_parameters
from redelivery.kit.names import DeadLetterNames

#: A queue's kind in a `ref`: that of AWS's controller for Kubernetes.
KIND: Final = "Queue"
API_GROUP: Final = "sqs.services.k8s.aws"
#: The end of a FIFO queue's name; SQS itself decides by it.
FIFO_SUFFIX: Final = ".fifo"
#: Characters of a queue's name at most.
MAX_NAME: Final = 80

_DEAD_LETTER_NAMES = DeadLetterNames(ending=FIFO_SUFFIX)
_NAME = re.compile(r"[A-Za-z0-9_-]+(?:\.fifo)?")
_ARN = re.compile(r"arn:[a-z0-9-]+:sqs:([a-z0-9-]+):([0-9]{12}):([^:]+)")
#: The hosts of AWS itself. An interface endpoint (vpce) must be given as the endpoint.
_HOST = re.compile(r"(?P<vpce>vpce-[a-z0-9.-]+\.)?sqs\.(?P<region>[a-z0-9-]+)\.(?:vpce\.)?amazonaws\.com(?:\.cn)?")
_PARAMETERS = {
    "account": "account",
    "endpoint_url": "endpoint",
    "profile": "profile",
    "region": "region",
    "role_arn": "role",
}
_EXAMPLE = (
    "it is written 'sqs:orders', 'sqs:https://sqs.eu-west-1.amazonaws.com/123456789012/orders' or "
    "'sqs:arn:aws:sqs:eu-west-1:123456789012:orders'"
)


def invalid_name(name: str) -> str | None:
    """Return what is wrong with a queue's name; None if it is valid."""
    if not name:
        return "its name is empty"
    if len(name) > MAX_NAME:
        return f"it has {len(name)} characters, and a queue's name {MAX_NAME} at most"
    if not _NAME.fullmatch(name):
        return "a queue's name has only letters, digits, '-' and '_', and may end with '.fifo'"
    return None


@dataclass(frozen=True, slots=True)
class Address:
    """One queue.

    Attributes:
        queue: its name.
        account: its owner; None: the caller's own account.
        region, endpoint, profile, role: from the URL, or from the settings (`completed`); None: boto3's chain decides.
    """

    queue: str
    account: str | None = None
    region: str | None = None
    endpoint: str | None = None
    profile: str | None = None
    role: str | None = None

    @property
    def url(self) -> str:
        """Its URL, always in the same form."""
        given = {name: getattr(self, field) for name, field in _PARAMETERS.items()}
        query = urlencode({name: value for name, value in given.items() if value is not None}, quote_via=quote)
        return f"sqs:{self.queue}" + (f"?{query}" if query else "")

    @property
    def host(self) -> str:
        """The host of its endpoint; AWS's own by default."""
        if self.endpoint is not None:
            return urlsplit(self.endpoint).hostname or ""
        return "sqs.amazonaws.com" if self.region is None else f"sqs.{self.region}.amazonaws.com"

    @property
    def fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.queue.endswith(FIFO_SUFFIX)

    @property
    def is_dead_letters(self) -> bool:
        """Whether its name is that of a dead letter queue."""
        return _DEAD_LETTER_NAMES.is_dead_letters(self.queue)

    @property
    def dead_letters(self) -> Address:
        """Its dead letter queue; a dead letter queue is its own."""
        return self.sibling(_DEAD_LETTER_NAMES.of(self.queue))

    def sibling(self, queue: str) -> Address:
        """Another queue of the same account, region and endpoint."""
        return replace(self, queue=queue)

    def completed(self, *, region: str | None, endpoint: str | None, profile: str | None, role: str | None) -> Address:
        """Return it with the settings' values where the URL has none, in one form for each spelling of a place."""
        endpoint = self.endpoint or endpoint
        return replace(
            self,
            region=self.region or region,
            endpoint=None if endpoint is None else _normal(endpoint),
            profile=self.profile or profile,
            role=self.role or role,
        )

    def of_arn(self, arn: str, account: str) -> Address | None:
        """The queue of an ARN, in the place of this one, whose owner is `account`; None: it is in another place."""
        found = _from_arn(arn)
        if found is None or found["account"] != account or invalid_name(found["queue"]):
            return None
        return self.sibling(found["queue"])

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse a URL.

        Raises:
            InvalidURL: no queue, an invalid name, a user or password, a parameter given twice.
            UnknownOption: an unknown parameter.
        """
        parts = split_url(url)
        shown = redact(url)
        if parts.fragment or "@" in parts.netloc:
            raise InvalidURL(f"sqs: {shown!r} holds a fragment or a user; {_EXAMPLE}")
        parameters = url_parameters(parts.query, _PARAMETERS, f"sqs: {shown!r}")
        given = {_PARAMETERS[name]: value for name, value in parameters.items()}
        if "endpoint" in given:
            check_endpoint(given["endpoint"], shown)
        target = unquote(parts.netloc + parts.path)
        found = _from_arn(target) or (_from_url(target, shown) if "://" in target else {"queue": target})
        twice = found.keys() & given.keys()
        if twice:
            raise InvalidURL(f"sqs: {shown!r} gives its {min(twice)} twice")
        address = cls(**{**given, **found})
        wrong = invalid_name(address.queue)
        if wrong is not None:
            raise InvalidURL(f"sqs: {shown!r}: {wrong}; {_EXAMPLE}")
        return address


def _from_arn(target: str) -> dict[str, str] | None:
    match = _ARN.fullmatch(target)
    return None if match is None else {"region": match[1], "account": match[2], "queue": match[3]}


def _from_url(target: str, shown: str) -> dict[str, str]:
    parts = check_endpoint(target, shown)
    match parts.path.strip("/").split("/"):
        case [account, queue]:
            found = {"account": account, "queue": queue}
        case _:
            raise InvalidURL(f"sqs: {shown!r}: a queue's URL ends with '/<account>/<name>'; {_EXAMPLE}")
    host = _HOST.fullmatch(parts.hostname or "")
    if host is not None:
        found["region"] = host["region"]
    if host is None or host["vpce"]:
        found["endpoint"] = f"{parts.scheme}://{parts.netloc}"
    return found


def _normal(endpoint: str) -> str:
    """An endpoint in lower case, without its scheme's default port and without a slash at its end."""
    parts = urlsplit(endpoint)
    host = parts.netloc.lower().removesuffix({"http": ":80", "https": ":443"}[parts.scheme])
    return urlunsplit(parts._replace(netloc=host, path=parts.path.rstrip("/")))


def check_endpoint(url: str, shown: str) -> SplitResult:
    """Return the parts of an endpoint. Raises InvalidURL, whose text shows only `shown` of it."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidURL(
            f"sqs: {shown!r}: its endpoint is not a URL"
        ) from None  # the original text may hold a password
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise InvalidURL(f"sqs: {shown!r}: an endpoint is written 'https://host:port', without a user")
    from botocore.utils import is_valid_endpoint_url, is_valid_ipv6_endpoint_url  # noqa: PLC0415 - takes long

    if not (is_valid_endpoint_url(url) or is_valid_ipv6_endpoint_url(url)):
        text = "boto3 refuses this host: a host's name has letters, digits and '-', not '_'"
        raise InvalidURL(f"sqs: {shown!r}: {text}; use another name, or its IP address")
    return parts
