"""pika's connection parameters, from an address and the options. Reads secrets and TLS files, no other I/O."""

from __future__ import annotations

import ssl

import pika
from pika.credentials import ExternalCredentials, PlainCredentials

from redelivery.errors import ConfigurationError
from redelivery.kit.address import is_local
from redelivery.kit.errors import guard_loggers
from redelivery.kit.options import resolve_secret
from redelivery_rabbitmq.address import Address
from redelivery_rabbitmq.options import Settings


def insecure(address: Address, settings: Settings) -> list[str]:
    """Return what makes a connection insecure, one clause each."""
    if is_local(address.host):
        return []
    if not (address.tls or settings.ssl):
        return [f"credentials go to {address.host} in plain text; write amqps:// or set rabbitmq.ssl=true"]
    return [] if settings.ssl_verify else ["rabbitmq.ssl.verify is off: anybody can impersonate the broker"]


def connection_parameters(address: Address, settings: Settings) -> pika.ConnectionParameters:
    """Return what pika needs to connect.

    Raises:
        ConfigurationError: a TLS file cannot be used, or the URL's secret reference cannot be resolved.
    """
    guard_loggers("pika")  # it logs the parameters and the frames of a connection
    timeout = settings.connection_timeout
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=_credentials(address, settings),
        heartbeat=settings.heartbeat,
        blocked_connection_timeout=settings.blocked_connection_timeout,
        socket_timeout=timeout,
        stack_timeout=timeout,
        connection_attempts=1,
        retry_delay=0,
        ssl_options=_tls(address, settings),
        client_properties={"connection_name": settings.connection_name},
    )


def user_of(address: Address, settings: Settings) -> str | None:
    """Return the name of the user who connects; None where the broker takes it from a certificate."""
    if settings.auth == "EXTERNAL":
        return None
    username = address.username if address.username is not None else settings.username
    return "guest" if username is None else username


def _credentials(address: Address, settings: Settings) -> PlainCredentials | ExternalCredentials:
    username = user_of(address, settings)
    if username is None:
        return ExternalCredentials()
    password = resolve_secret(address.password) if address.password is not None else settings.password
    return PlainCredentials(username, "guest" if password is None else password)


def _tls(address: Address, settings: Settings) -> pika.SSLOptions | None:
    if not (address.tls or settings.ssl):
        return None
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca)
        if settings.ssl_cert is not None:
            context.load_cert_chain(settings.ssl_cert, settings.ssl_key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        files = f"rabbitmq.ssl.ca={settings.ssl_ca!r}, .cert={settings.ssl_cert!r}, .key={settings.ssl_key!r}"
        raise ConfigurationError(f"rabbitmq: the TLS files cannot be used ({files}): {error}") from error
    if not settings.ssl_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return pika.SSLOptions(context, settings.ssl_server_name or address.host)
