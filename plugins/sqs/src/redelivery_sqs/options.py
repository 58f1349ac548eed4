"""The client options."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from redelivery.errors import ConfigurationError
from redelivery.kit.options import Options, flag, integer, option, seconds, secret, text
from redelivery_sqs.address import check_endpoint

_PROXIES: Final = '{"https": "http://proxy:3128"}'
#: SQS's limits, in seconds.
_MAX_RETENTION: Final = 1_209_600
_MAX_HIDDEN: Final = 43_200


def _proxies(given: str) -> tuple[tuple[str, str], ...]:
    try:
        found = json.loads(given)
        good = isinstance(found, dict) and all(isinstance(each, str) and urlsplit(each) for each in found.values())
    except RecursionError:
        good = False
    if not good:
        raise ValueError
    return tuple(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Settings(Options, broker="sqs"):
    """The values of the client options."""

    access_key_id: str | None = text("id of an access key; by default boto3's own chain finds credentials")
    ca_bundle: str | None = text("file of the certificates to trust; by default botocore's own")
    concurrency: int = integer(16, "requests in flight at once, each in its own thread", least=1, most=256)
    connect_timeout: float = seconds(5, "seconds to wait for a connection", least=0.1, most=60)
    dead_letter_retention: int = integer(
        _MAX_RETENTION, "seconds that a provisioned dead letter queue keeps a letter", least=60, most=_MAX_RETENTION
    )
    dead_letter_visibility_timeout: int = integer(
        120, "seconds that a browsed letter stays hidden if the reader dies", least=2, most=_MAX_HIDDEN
    )
    endpoint_url: str | None = text("endpoint of SQS; by default AWS's own")
    external_id: str | None = secret("external id that the role of role_arn requires")
    fair_by_key: bool = flag(
        "standard queues: a row's key is also its message group id, so that no key delays the others (fair queues)",
        default=False,
    )
    kms_key: str | None = text("key that encrypts provisioned queues; by default SQS's own (SSE-SQS)")
    max_message_bytes: int = integer(
        1 << 20,
        "size of the largest message and of the largest request that the server accepts",
        least=1024,
        most=1 << 31,
    )
    max_pool_connections: int | None = integer(
        None, "connections kept open", least=1, most=1024, shown="as many as concurrency"
    )
    message_group: str | None = text(
        "FIFO queues: the group of rows without a key (*: each its own); by default such a row is refused"
    )
    profile: str | None = text("profile of the shared AWS configuration")
    proxies: tuple[tuple[str, str], ...] = option(
        (), f"proxies as JSON, by scheme: {_PROXIES}", _proxies, f"JSON such as {_PROXIES}", secret=True
    )
    read_timeout: float = seconds(15, "seconds to wait for an answer", least=0.1, most=300)
    region: str | None = text("AWS region; by default boto3's own chain finds it")
    retention: int = integer(345_600, "seconds that a provisioned queue keeps a message", least=60, most=_MAX_RETENTION)
    role_arn: str | None = text("role to assume")
    secret_access_key: str | None = secret("secret of access_key_id")
    session_token: str | None = secret("token of temporary credentials")
    tcp_keepalive: bool = flag("keep idle connections alive", default=True)

    def __post_init__(self) -> None:
        """Check what one option alone cannot show."""
        if self.endpoint_url is not None:
            check_endpoint(self.endpoint_url, "sqs.endpoint_url")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigurationError(
                "sqs.access_key_id and sqs.secret_access_key require each other; give both or none"
            )

    @property
    def proxy_hosts(self) -> list[str]:
        """The hosts of the proxies, as botocore reads them: without a scheme it is `http`."""
        return [urlsplit(url if "//" in url else f"//{url}").hostname or "" for _, url in self.proxies]
