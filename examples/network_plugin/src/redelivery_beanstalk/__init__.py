"""beanstalkd as a broker of redelivery: `beanstalk://HOST:PORT/TUBE`, a work queue on the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version

from redelivery.contract.broker import (
    Admin,
    Broker,
    BrokerPlugin,
    Capabilities,
    DeadLetters,
    Limits,
    Receiver,
    Sender,
    Support,
)
from redelivery.contract.hooks import hookimpl
from redelivery_beanstalk.address import Address
from redelivery_beanstalk.admin import KIND, BeanstalkAdmin
from redelivery_beanstalk.codec import headers_most
from redelivery_beanstalk.dead_letters import BeanstalkDeadLetters
from redelivery_beanstalk.options import Settings
from redelivery_beanstalk.receiver import LONGEST_DELAY, BeanstalkReceiver
from redelivery_beanstalk.sender import BeanstalkSender

CAPABILITIES = Capabilities(
    send=Support.NATIVE,
    receive=Support.NATIVE,
    provision=Support.NATIVE,
    browse=Support.EMULATED,  # letters are reserved to be seen
    remove=Support.NATIVE,
    purge=Support.EMULATED,
    dead_letter=Support.EMULATED,  # a second tube
    keys=Support.EMULATED,  # before the value, as are headers, id and timestamp
    headers=Support.EMULATED,
    ids=Support.EMULATED,
    timestamps=Support.EMULATED,
    null_value=Support.EMULATED,
    destinations=Support.NATIVE,
    competing_consumers=Support.NATIVE,
    settle_any_order=Support.NATIVE,
    attempts=Support.NATIVE,
    delay=Support.NATIVE,
    terminate=Support.EMULATED,  # the letter is sent and confirmed, then the message is deleted
    extend=Support.NATIVE,
    leases_as_asked=False,  # who sends a message says how long it is leased
    ref_kinds=(KIND,),
    limits=Limits(message_bytes=65535, headers_bytes=headers_most(65535), delay_max=LONGEST_DELAY),
)


class BeanstalkBroker(Broker):
    """One tube of one server."""

    name = "beanstalk"
    capabilities = CAPABILITIES

    def __init__(self, address: Address, settings: Settings) -> None:
        self._address, self._settings = address, settings
        self.canonical_url = address.url
        self.hosts = (address.host,)
        most = settings.max_job_size
        limits = replace(CAPABILITIES.limits, message_bytes=most, headers_bytes=headers_most(most))
        self.capabilities = replace(CAPABILITIES, limits=limits)

    def sender(self) -> Sender:
        return BeanstalkSender(self._address, self._settings)

    def receiver(self, *, lease: timedelta = timedelta(seconds=30)) -> Receiver:  # noqa: ARG002 - see `leases_as_asked`
        return BeanstalkReceiver(self._address, self._settings)

    def admin(self) -> Admin:
        return BeanstalkAdmin(self._address, self._settings)

    def dead_letters(self, *, direct: bool = False) -> DeadLetters:
        return BeanstalkDeadLetters(self._address if direct else self._address.dead_letters, self._settings)

    def native_sink(self) -> str:
        return self._address.dead_letters.url

    def sibling(self, name: str) -> str:
        return self._address.sibling(name).url


def connect(url: str, options: Mapping[str, str]) -> Broker:
    """Make a broker of `beanstalk://HOST:PORT/TUBE`. Raises InvalidURL, UnknownOption, ConfigurationError."""
    return BeanstalkBroker(Address.parse(url), Settings.parse(options))


@hookimpl
def redelivery_plugin() -> BrokerPlugin:
    """Return the plugin: the entry point in the group `redelivery` names this module, and core calls this."""
    return BrokerPlugin(
        name="beanstalk",
        schemes=("beanstalk",),
        version=version("redelivery-beanstalk"),
        capabilities=CAPABILITIES,
        connect=connect,
        options=Settings.help(),
    )
