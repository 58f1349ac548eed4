"""The client options, and the boto3 client that they make: one a process and place, shared by its roles.

Botocore's own retries are off, so that an attempt is an attempt. Clients may be shared by threads, but not over a fork.
This file must not send or receive a message.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import (
    AssumeRoleCredentialFetcher,
    CredentialProvider,
    CredentialResolver,
    DeferredRefreshableCredentials,
)
from botocore.exceptions import NoCredentialsError

from redelivery.base.secrets import guard_loggers, redact, remember
from redelivery.base.urls import unknown
from redelivery.errors import ConfigurationError, Fatal
from redelivery_sqs.address import Address, check_endpoint
from redelivery_sqs.errors import classified

OPTIONS: Final[Mapping[str, str]] = {
    "access_key_id": "id of an access key; by default boto3's own chain finds credentials",
    "connect_timeout": "seconds to wait for a connection (5)",
    "ca_bundle": "file of the certificates to trust; by default botocore's own",
    "concurrency": "requests in flight at once, each by a thread of its own (16)",
    "dead_letter_hold": "seconds that a letter which was looked at stays hidden, where the look was killed (120)",
    "dead_letter_retention": "seconds that a provisioned dead letter queue keeps a letter (1209600, the most)",
    "endpoint_url": "where SQS is reached, if not at AWS",
    "external_id": "what the role of role_arn asks for besides, as a reference",
    "kms_key": "key that provisioned queues are encrypted with; by default SQS's own (SSE-SQS)",
    "max_message_bytes": "the largest message and the largest batch that the server takes (1048576, AWS's own)",
    "max_pool_connections": "connections kept open (as many as concurrency)",
    "message_group": "FIFO queues: the group of rows without a key (*: one each); without it such a row is refused",
    "profile": "profile of the shared AWS configuration",
    "proxies": 'proxies as JSON, by scheme: {"https": "http://proxy:3128"}',
    "read_timeout": "seconds to wait for an answer (15)",
    "region": "AWS region; by default boto3's own chain finds it",
    "retention": "seconds that a provisioned queue keeps a message (345600, SQS's own)",
    "role_arn": "role to assume",
    "secret_access_key": "secret of access_key_id, as a reference",
    "session_token": "token of temporary credentials, as a reference",
    "tcp_keepalive": "keep idle connections alive: true or false (true)",
}

#: What a role's session is called in AWS's logs.
_SESSION_NAME = "redelivery"
_CONCURRENCY = 16
#: Options that are numbers: of which kind, and from where to where.
_NUMBERS: Final[Mapping[str, tuple[type, float, float]]] = {
    "concurrency": (int, 1, 256),
    "connect_timeout": (float, 0.1, 60),
    "dead_letter_hold": (int, 2, 43_200),
    "dead_letter_retention": (int, 60, 1_209_600),
    "max_message_bytes": (int, 1024, 1 << 31),
    "max_pool_connections": (int, 1, 1024),
    "read_timeout": (float, 0.1, 300),
    "retention": (int, 60, 1_209_600),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The client options, read. Secrets and what may hold some are left out of its repr."""

    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str | None = None
    endpoint_url: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    external_id: str | None = field(default=None, repr=False)
    ca_bundle: str | None = None
    proxies: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    connect_timeout: float = 5.0
    read_timeout: float = 15.0
    max_pool_connections: int = _CONCURRENCY
    tcp_keepalive: bool = True
    concurrency: int = _CONCURRENCY
    max_message_bytes: int = 1 << 20
    message_group: str | None = None
    retention: int = 345_600
    dead_letter_hold: int = 120
    dead_letter_retention: int = 1_209_600
    kms_key: str | None = None

    @property
    def proxy_hosts(self) -> list[str]:
        """The hosts of the proxies, as botocore reads them: without a scheme it is `http`."""
        return [urlsplit(url if "//" in url else f"//{url}").hostname or "" for _, url in self.proxies]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> Settings:
        """Read the options.

        Raises:
            UnknownOption, ConfigurationError: names the option and what it takes.
        """
        for name in options:
            if name not in OPTIONS:
                raise unknown("option", f"sqs.{name}", [f"sqs.{each}" for each in OPTIONS])
        given: dict[str, Any] = dict(options)
        for name, (kind, least, most) in _NUMBERS.items():
            if name in options:
                given[name] = kind(_number(options, name, least, most))
        given.setdefault("max_pool_connections", given.get("concurrency", _CONCURRENCY))
        if "proxies" in options:
            given["proxies"] = _proxies(options["proxies"])
        if "tcp_keepalive" in options:
            given["tcp_keepalive"] = _boolean(options, "tcp_keepalive")
        if "endpoint_url" in options:
            check_endpoint(options["endpoint_url"], "sqs.endpoint_url")
        if ("access_key_id" in given) != ("secret_access_key" in given):
            raise ConfigurationError(
                "sqs.access_key_id and sqs.secret_access_key belong together: give both, or neither"
            )
        empty = [name for name, value in given.items() if value == ""]
        if empty:
            raise ConfigurationError(f"sqs.{empty[0]} is empty; leave it out, or give it a value")
        return cls(**given)


def client(address: Address, settings: Settings) -> Any:
    """The process's boto3 client for this place; made when first asked for, and kept.

    Raises:
        BrokerError: no credentials, no region, no such profile.
    """
    place = (address.region, address.endpoint, address.profile, address.role)
    with _made.lock:
        found = _made.clients.get((place, settings))
        if found is None:
            try:
                with classified("making a client"):
                    found = _client(address, settings)
            except ValueError as error:  # botocore's word for an endpoint of the environment that is none
                text = f"sqs: making a client: {redact(str(error))}; correct the endpoint that the environment names"
                raise Fatal(text, code="ValueError") from error
            _made.clients[place, settings] = found
        return found


def queue_url(address: Address, settings: Settings) -> str:
    """SQS's own URL of the queue; asked for once a process, and not at all where the address says the account.

    Raises:
        BrokerError: there is no such queue, or it may not be seen.
    """
    own = client(address, settings)
    if address.account is not None:
        return f"{own.meta.endpoint_url.rstrip('/')}/{address.account}/{address.queue}"
    found = _made.urls.get((address, settings))
    if found is None:
        with classified(f"looking for queue {address.queue!r}"):
            found = str(own.get_queue_url(QueueName=address.queue)["QueueUrl"])
        _made.urls[address, settings] = found
    return found


class _Made:
    """What this process has made. A child of a fork begins anew: two processes must not write to one connection."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[Any, Any] = {}
        self.urls: dict[tuple[Address, Settings], str] = {}


_made = _Made()


def _forget() -> None:
    # Never closed here: the connections are the parent's, and closing one would end its TLS session.
    _inherited.append(_made.clients)
    _made.__init__()  # type: ignore[misc]


_inherited: list[Any] = []
os.register_at_fork(after_in_child=_forget)


def _client(address: Address, settings: Settings) -> Any:
    guard_loggers("boto3", "botocore", "urllib3")  # at DEBUG they log tokens, and the answers of STS
    session = botocore.session.Session(profile=address.profile or settings.profile)
    region = address.region or settings.region
    if settings.access_key_id is not None:
        session.set_credentials(settings.access_key_id, settings.secret_access_key or "", settings.session_token)
    config = Config(
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_pool_connections,
        tcp_keepalive=settings.tcp_keepalive,
        proxies=dict(settings.proxies) or None,
        retries={"total_max_attempts": 1},
        # What we send is checked by our own encoding; botocore's check of every member costs a tenth of a batch.
        parameter_validation=False,
    )
    more: dict[str, Any] = {"config": config, "verify": settings.ca_bundle}
    role = address.role or settings.role_arn
    if role is not None:
        _assume(session, role, settings, partial(session.create_client, region_name=region, **more))
    if session.get_credentials() is None:
        raise NoCredentialsError
    made = boto3.Session(botocore_session=session)
    return made.client("sqs", region_name=region, endpoint_url=address.endpoint or settings.endpoint_url, **more)


class _Assumed(CredentialProvider):
    """Credentials of a role, fetched when first needed and again before they run out."""

    METHOD = "redelivery-assume-role"

    def __init__(self, fetcher: AssumeRoleCredentialFetcher, role: str) -> None:
        super().__init__()
        self._fetcher = fetcher
        self._role = role

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(refresh_using=self._fetch, method=self.METHOD)

    def _fetch(self) -> Any:
        with classified(f"assuming role {self._role!r}"):
            found = self._fetcher.fetch_credentials()
        for name in ("secret_key", "token"):
            remember(found[name])
        return found


def _assume(session: botocore.session.Session, role: str, settings: Settings, creator: Any) -> None:
    source = session.get_credentials()
    if source is None:
        raise NoCredentialsError
    extra = {"RoleSessionName": _SESSION_NAME}
    if settings.external_id is not None:
        extra["ExternalId"] = settings.external_id
    fetcher = AssumeRoleCredentialFetcher(creator, source, role, extra_args=extra)
    resolver = CredentialResolver(providers=[_Assumed(fetcher, role)])
    session._credentials = None  # type: ignore[attr-defined]  # noqa: SLF001 - botocore has no other way to make it look again
    session.register_component("credential_provider", resolver)


def _number(options: Mapping[str, str], name: str, least: float, most: float) -> float:
    try:
        value = float(options[name])
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise ConfigurationError(f"sqs.{name}: a number from {least:g} to {most:g}, not {options[name]!r}")
    return value


def _boolean(options: Mapping[str, str], name: str) -> bool:
    value = options[name].lower()
    if value not in {"true", "false"}:
        raise ConfigurationError(f"sqs.{name}: true or false, not {value!r}")
    return value == "true"


def _proxies(text: str) -> tuple[tuple[str, str], ...]:
    try:
        found = json.loads(text)
        good = isinstance(found, dict) and all(isinstance(each, str) and urlsplit(each) for each in found.values())
    except (ValueError, RecursionError):
        good = False
    if not good:
        raise ConfigurationError('sqs.proxies: JSON as {"https": "http://proxy:3128"}') from None
    return tuple(sorted(found.items()))
