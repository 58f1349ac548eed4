"""The boto3 clients of this process: one per place and settings, shared by its roles.

Botocore's own retries are off, so that an attempt is one request. Threads may share a client, but processes may not:
a child of a fork makes its own.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any, Final

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

from redelivery.kit.options import guard_loggers, remember
from redelivery_sqs.address import Address
from redelivery_sqs.client.botocore_private import forget_credentials
from redelivery_sqs.errors import INVALID_ENDPOINT, TABLE
from redelivery_sqs.options import Settings

#: The name of an assumed role's session in AWS's logs.
_SESSION_NAME: Final = "redelivery"


def boto_client(address: Address, settings: Settings) -> Any:
    """Return the process's boto3 client for a place; the first call makes it.

    Raises:
        BrokerError: no credentials, no region, no such profile.
    """
    place = (address.region, address.endpoint, address.profile, address.role)
    with _cache.lock:
        found = _cache.clients.get((place, settings))
        if found is None:
            try:
                with TABLE.while_doing("making a client", safe=True):
                    found = _new_client(address, settings)
            except ValueError as error:
                raise TABLE.error(error, "making a client", rule=INVALID_ENDPOINT) from error
            _cache.clients[place, settings] = found
        return found


def queue_url(address: Address, settings: Settings, *, own: bool = True) -> str:
    """Return SQS's own URL of a queue.

    An address with an account needs no request; for any other SQS is asked once per process. `own` as in `Queue`.

    Raises:
        BrokerError: the queue does not exist, or this principal must not see it.
    """
    client = boto_client(address, settings)
    if address.account is not None:
        return f"{client.meta.endpoint_url.rstrip('/')}/{address.account}/{address.queue}"
    found = _cache.urls.get((address, settings))
    if found is None:
        doing = f"looking for queue {address.queue!r}"
        with TABLE.while_doing(doing, safe=True, own_target=own, needs="sqs:GetQueueUrl"):
            found = str(client.get_queue_url(QueueName=address.queue)["QueueUrl"])
        _cache.urls[address, settings] = found
    return found


class _Cache:
    """The clients and queue URLs of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clients: dict[Any, Any] = {}
        self.urls: dict[tuple[Address, Settings], str] = {}


_cache = _Cache()


def _forget_inherited() -> None:
    # The clients are never closed here: their connections are the parent's, and closing one would end its TLS session.
    _inherited.append(_cache.clients)
    _cache.__init__()  # type: ignore[misc]


_inherited: list[Any] = []
os.register_at_fork(after_in_child=_forget_inherited)


def _new_client(address: Address, settings: Settings) -> Any:
    guard_loggers("boto3", "botocore", "urllib3")  # at DEBUG they log tokens, and the answers of STS
    session = botocore.session.Session(profile=address.profile or settings.profile)
    region = address.region or settings.region
    if settings.access_key_id is not None:
        session.set_credentials(settings.access_key_id, settings.secret_access_key or "", settings.session_token)
    made = boto3.Session(botocore_session=session)
    config = Config(
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.max_pool_connections or settings.concurrency,
        tcp_keepalive=settings.tcp_keepalive,
        proxies=dict(settings.proxies) or None,
        retries={"total_max_attempts": 1},
        # Our codec checks what we send; botocore's check of every member costs a tenth of a batch.
        parameter_validation=False,
        # By default botocore puts this together again for every request, which costs a ninth of a batch.
        user_agent=session.user_agent(),
    )
    more: dict[str, Any] = {"config": config, "verify": settings.ca_bundle}
    role = address.role or settings.role_arn
    if role is not None:
        _assume(session, role, settings, partial(session.create_client, region_name=region, **more))
    if session.get_credentials() is None:
        raise NoCredentialsError
    return made.client("sqs", region_name=region, endpoint_url=address.endpoint or settings.endpoint_url, **more)


class _AssumedRole(CredentialProvider):
    """Credentials of a role, fetched at their first use and again before they expire."""

    METHOD = "redelivery-assume-role"

    def __init__(self, fetcher: AssumeRoleCredentialFetcher, role: str) -> None:
        super().__init__()
        self._fetcher = fetcher
        self._role = role

    def load(self) -> DeferredRefreshableCredentials:
        return DeferredRefreshableCredentials(refresh_using=self._fetch, method=self.METHOD)

    def _fetch(self) -> Any:
        with TABLE.while_doing(f"assuming role {self._role!r}", safe=True):
            found = self._fetcher.fetch_credentials()
        for name in ("secret_key", "token"):
            remember(found[name])
        return found


def _assume(session: botocore.session.Session, role: str, settings: Settings, create_client: Any) -> None:
    source = session.get_credentials()
    if source is None:
        raise NoCredentialsError
    extra = {"RoleSessionName": _SESSION_NAME}
    if settings.external_id is not None:
        extra["ExternalId"] = settings.external_id
    fetcher = AssumeRoleCredentialFetcher(create_client, source, role, extra_args=extra)
    forget_credentials(session)
    session.register_component("credential_provider", CredentialResolver(providers=[_AssumedRole(fetcher, role)]))
